// Recognises datagrams of the communication management class.
#include "cm/mad.h"

namespace verbena::cm {

bool is_cm_mad(std::span<const std::byte> bytes) {
  if (bytes.size() != kMadBytes) return false;
  const MadHeader h = MadHeader::load(bytes.data());
  return h.base_version == kBaseVersion && h.management_class == kCmClass &&
         h.class_version == kCmClassVersion && h.method == kMethodSend;
}

const char* name_of(Attribute attribute) {
  switch (attribute) {
    case Attribute::Req:
      return "REQ";
    case Attribute::Mra:
      return "MRA";
    case Attribute::Rej:
      return "REJ";
    case Attribute::Rep:
      return "REP";
    case Attribute::Rtu:
      return "RTU";
    case Attribute::Dreq:
      return "DREQ";
    case Attribute::Drep:
      return "DREP";
    case Attribute::SidrReq:
      return "SIDR_REQ";
    case Attribute::SidrRep:
      return "SIDR_REP";
    case Attribute::Lap:
      return "LAP";
    case Attribute::Apr:
      return "APR";
  }
  return "unknown";
}

}  // namespace verbena::cm
