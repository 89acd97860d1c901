// Sentences for what librdmacm can only say as a number.
#include "runtime/connection_text.h"

#include <cerrno>

#include "cm/ip_addressing.h"
#include "cm/route.h"
#include "runtime/failure_text.h"

namespace verbena::runtime {
namespace {

std::string words_for(cm::RejectReason reason) {
  using Reason = cm::RejectReason;
  switch (reason) {
    case Reason::NoQp:
    case Reason::NoResources:
      return "the peer has no room for it (is its backlog full?)";
    case Reason::Timeout:
      return "the peer waited too long for an answer";
    case Reason::InvalidCommId:
      return "the peer does not know it (any more): its process has probably ended";
    case Reason::InvalidServiceId:
      return "nobody listens there";
    case Reason::InvalidTransportType:
      return "the listener does not take queue pairs of this type";
    case Reason::StaleConnection:
      return "the peer still has an old connection with this queue pair";
    case Reason::InvalidGid:
      return "the peer does not take this address: is there address translation on the way?";
    case Reason::InvalidMtu:
      return "the peer does not take this path MTU";
    case Reason::Consumer:
      return "the application over there refused it";
    default:
      return "reason " + std::to_string(static_cast<int>(reason)) + " of the standard's table 109";
  }
}

std::string words_for(cm::SidrStatus status) {
  switch (status) {
    case cm::SidrStatus::UnsupportedServiceId:
      return "nobody listens there";
    case cm::SidrStatus::Reject:
      return "refused";
    case cm::SidrStatus::NoQp:
      return "the peer has no queue pair for it";
    default:
      return "status " + std::to_string(static_cast<int>(status));
  }
}

std::string connection(const cm::Event& e) {
  return std::string(e.active ? "connection to " : "connection from ") + to_text(e.peer) +
         (e.active ? " port " : " to port ") + std::to_string(e.port);
}

}  // namespace

std::string describe(const cm::Event& e) {
  switch (e.kind) {
    case cm::EventKind::Rejected:
      return connection(e) + " was refused: " + words_for(e.reason);
    case cm::EventKind::Unreachable:
      if (e.error == EHOSTUNREACH) {
        return connection(e) +
               " was given up: the network says that nothing gets there (there is no such host, or "
               "a firewall refuses UDP port 4791)";
      }
      return connection(e) +
             " was given up: no answer (the host is down, has no RDMA device at this address, or a "
             "firewall drops UDP port 4791)";
    case cm::EventKind::Disconnected:
      if (e.error == 0) return {};
      return connection(e) + (e.error == ETIMEDOUT ? " ended: the peer does not answer any more"
                                                   : " ended: the peer does not know it any more");
    case cm::EventKind::SidrResponse:
      if (e.sidr_status == cm::SidrStatus::Success) return {};
      return "the service at " + to_text(e.peer) + " port " + std::to_string(e.port) +
             " was not found: " + words_for(e.sidr_status);
    default:
      return {};
  }
}

std::string describe_refusal(const cm::ReceivedMad& request, cm::CounterId refused) {
  const char* why = nullptr;
  switch (refused) {
    case cm::CounterId::no_listener:
      why = "nobody listens there";
      break;
    case cm::CounterId::backlog_full:
      why = "the listener's backlog is full; the application takes requests too slowly";
      break;
    case cm::CounterId::too_many_connections:
      why = "there are too many connections";
      break;
    case cm::CounterId::bad_requests:
      why = "it asks for what is not possible (transport, MTU, addresses)";
      break;
    default:
      return {};
  }
  const cm::Route route = cm::route_of(request.bytes);
  return "a request from " + to_text(request.source) + " to port " +
         std::to_string(cm::port_of(route.service_id)) + " was refused: " + why;
}

}  // namespace verbena::runtime
