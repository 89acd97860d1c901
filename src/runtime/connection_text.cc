// Sentences for errors that librdmacm reports only as numbers.
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
      return "the peer lacks resources (is its backlog full?)";
    case Reason::Timeout:
      return "the peer timed out";
    case Reason::InvalidCommId:
      return "the peer does not know this connection: its process has probably ended";
    case Reason::InvalidServiceId:
      return "no process listens on this port";
    case Reason::InvalidTransportType:
      return "the listener does not accept queue pairs of this type";
    case Reason::StaleConnection:
      return "the peer still has an old connection with this queue pair";
    case Reason::InvalidGid:
      return "the peer does not accept this address: is there address translation on the path?";
    case Reason::InvalidMtu:
      return "the peer does not accept this path MTU";
    case Reason::Consumer:
      return "the peer's application refused it";
    default:
      return "reason " + std::to_string(static_cast<int>(reason)) +
             " (IBA specification, table 109)";
  }
}

std::string words_for(cm::SidrStatus status) {
  switch (status) {
    case cm::SidrStatus::UnsupportedServiceId:
      return "no process listens on this port";
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
               " failed: the network reports the host as unreachable (there is no such host, or a "
               "firewall refuses UDP port 4791)";
      }
      return connection(e) +
             " failed: no response (the host is down, has no RDMA device at this address, or a "
             "firewall drops UDP port 4791)";
    case cm::EventKind::Disconnected:
      if (e.error == 0) return {};
      return connection(e) + (e.error == ETIMEDOUT
                                  ? " ended: the peer does not respond"
                                  : " ended: the peer does not know this connection");
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
      why = "no process listens on this port";
      break;
    case cm::CounterId::backlog_full:
      why = "the listener's backlog is full; the application takes requests too slowly";
      break;
    case cm::CounterId::too_many_connections:
      why = "there are too many connections";
      break;
    case cm::CounterId::bad_requests:
      why = "it asks for an unsupported transport, MTU or address";
      break;
    default:
      return {};
  }
  const cm::Route route = cm::route_of(request.bytes);
  return "a request from " + to_text(request.source) + " to port " +
         std::to_string(cm::port_of(route.service_id)) + " was refused: " + why;
}

}  // namespace verbena::runtime
