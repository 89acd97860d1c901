// StreamSocket: socket options. TCP options without an effect here are stored and returned, so that
// programs read back what they set.
#include <infiniband/sa.h>
#include <rdma/rsocket.h>

#include <cerrno>
#include <cstdio>

#include "rsocket/clock.h"
#include "rsocket/option_value.h"
#include "rsocket/service_thread.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {

// Reads the system's default for TCP, for programs that query before they set.
int system_default(const char* name, int otherwise) {
  char path[96];
  std::snprintf(path, sizeof path, "/proc/sys/net/ipv4/%s", name);
  FILE* file = std::fopen(path, "re");
  if (!file) return otherwise;
  int value = otherwise;
  if (std::fscanf(file, "%d", &value) != 1 || value <= 0) value = otherwise;
  std::fclose(file);
  return value;
}

// TCP options without an effect here, and their default values.
struct IgnoredOption {
  int level, option, otherwise;
};
constexpr IgnoredOption kIgnoredOptions[] = {
    {SOL_SOCKET, SO_BROADCAST, 0},         {SOL_SOCKET, SO_PRIORITY, 0},
    {SOL_SOCKET, SO_DONTROUTE, 0},         {SOL_SOCKET, SO_RCVLOWAT, 1},
    {SOL_SOCKET, SO_SNDLOWAT, 1},          {IPPROTO_TCP, TCP_CORK, 0},
    {IPPROTO_TCP, TCP_QUICKACK, 1},        {IPPROTO_TCP, TCP_DEFER_ACCEPT, 0},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, 0},    {IPPROTO_IP, IP_TTL, 64},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, 64},
};

int bytes_of_mtu(unsigned mtu) { return mtu >= 1 && mtu <= 5 ? 128 << mtu : 2048; }

uint64_t unsigned_of(int value) { return value < 0 ? 0 : static_cast<uint64_t>(value); }

// Converts a path record to the form of RDMA_ROUTE.
ibv_path_data path_data_of(const ibv_sa_path_rec& path) {
  ibv_path_data data{};
  data.path.dgid = path.dgid;
  data.path.sgid = path.sgid;
  data.path.dlid = path.dlid;
  data.path.slid = path.slid;
  data.path.flowlabel_hoplimit = htonl(ntohl(path.flow_label) << 8 | path.hop_limit);
  data.path.tclass = path.traffic_class;
  data.path.reversible_numpath = static_cast<uint8_t>((path.reversible ? 0x80 : 0) | 1);
  data.path.pkey = path.pkey;
  data.path.qosclass_sl = htons(path.sl);
  constexpr uint8_t kExactly = 2 << 6;
  data.path.mtu = path.mtu | kExactly;
  data.path.rate = path.rate | kExactly;
  data.path.packetlifetime = path.packet_life_time | kExactly;
  data.flags = path.preference;
  return data;
}

}  // namespace

int StreamSocket::Options::keep_idle() const {
  return keep_idle_s ? *keep_idle_s : system_default("tcp_keepalive_time", 7200);
}
int StreamSocket::Options::keep_interval() const {
  return keep_interval_s ? *keep_interval_s : system_default("tcp_keepalive_intvl", 75);
}
int StreamSocket::Options::keep_probes() const {
  return keep_count ? *keep_count : system_default("tcp_keepalive_probes", 9);
}

// --- setters ------------------------------------------------------------------------------------

Status StreamSocket::set_option(int level, int option, const void* value, socklen_t size) {
  if (!value && size > 0) return Error{EFAULT};
  const std::lock_guard guard(lock_);
  if (stored_option(level, option)) {
    auto number = option_value<int>(value, size);
    if (!number.ok()) return number.error();
    options_.ignored[{level, option}] = number.value();
    return {};
  }
  switch (level) {
    case SOL_SOCKET:
      return set_socket_option(option, value, size);
    case IPPROTO_TCP:
      return set_tcp_option(option, value, size);
    case SOL_RDMA:
      return set_rdma_option(option, value, size);
    case IPPROTO_IP:
    case IPPROTO_IPV6: {
      auto number = option_value<int>(value, size);
      if (!number.ok()) return number.error();
      if (level == IPPROTO_IP && option == IP_TOS) {
        options_.type_of_service = number.value() & 0xff;
      } else if (level == IPPROTO_IPV6 && option == IPV6_TCLASS) {
        options_.type_of_service = number.value() < 0 ? 0 : number.value() & 0xff;
      } else if (level == IPPROTO_IPV6 && option == IPV6_V6ONLY) {
        options_.v6_only = number.value() != 0;
      } else {
        return Error{ENOTSUP};
      }
      return apply_options();
    }
    default:
      return Error{ENOTSUP};
  }
}

std::optional<int> StreamSocket::stored_option(int level, int option) const {
  for (const IgnoredOption& known : kIgnoredOptions) {
    if (known.level != level || known.option != option) continue;
    const auto set = options_.ignored.find({level, option});
    return set != options_.ignored.end() ? set->second : known.otherwise;
  }
  return std::nullopt;
}

// Applies the options that concern the connection manager.
Status StreamSocket::apply_options() {
  if (state_ != State::kIdle) return {};
  if (options_.reuse_address) {
    int on = 1;
    if (rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on) != 0 &&
        errno != ENOSYS) {
      return Error{errno};
    }
  }
  if (options_.v6_only && !bound_) {
    int only = *options_.v6_only;
    if (rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only) != 0) {
      return Error{errno};
    }
  }
  if (options_.type_of_service) {
    auto service = static_cast<uint8_t>(options_.type_of_service);
    if (rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &service, sizeof service) != 0) {
      return Error{errno};
    }
  }
  return {};
}

Status StreamSocket::set_socket_option(int option, const void* value, socklen_t size) {
  if (auto limit = set_time_limit(option, value, size)) return *limit;
  if (option == SO_LINGER) {
    auto lingering = option_value<linger>(value, size);
    if (!lingering.ok()) return lingering.error();
    options_.lingering = lingering.value();
    return {};
  }
  auto given = option_value<int>(value, size);
  if (!given.ok()) return given.error();
  const int number = given.value();
  switch (option) {
    case SO_REUSEADDR:
    case SO_REUSEPORT:
      options_.reuse_address = number != 0;
      return apply_options();
    case SO_RCVBUF:  // doubled, as Linux does
      if (!endpoint_) options_.sizes.set_receive_bytes(unsigned_of(number) * 2);
      return {};
    case SO_SNDBUF:
      if (!endpoint_) options_.sizes.set_send_bytes(unsigned_of(number) * 2);
      return {};
    case SO_KEEPALIVE:
      options_.keepalive = number != 0;
      schedule_probe(now());
      return {};
    case SO_OOBINLINE:
      options_.out_of_band_inline = number != 0;
      return {};
    default:
      return Error{ENOTSUP};
  }
}

Status StreamSocket::set_tcp_option(int option, const void* value, socklen_t size) {
  if (option == TCP_CONGESTION) return {};  // the queue pair has its own congestion control
  auto given = option_value<int>(value, size);
  if (!given.ok()) return given.error();
  const int number = given.value();
  switch (option) {
    case TCP_NODELAY:
      options_.no_delay = number != 0;
      return {};
    case TCP_KEEPIDLE:
      if (number <= 0) return Error{EINVAL};
      options_.keep_idle_s = number;
      schedule_probe(now());
      return {};
    case TCP_KEEPINTVL:
      if (number <= 0) return Error{EINVAL};
      options_.keep_interval_s = number;
      return {};
    case TCP_KEEPCNT:
      if (number <= 0) return Error{EINVAL};
      options_.keep_count = number;
      return {};
    case TCP_MAXSEG:
      return {};
    default:
      return Error{ENOTSUP};
  }
}

Status StreamSocket::set_rdma_option(int option, const void* value, socklen_t size) {
  if (state_ != State::kIdle && state_ != State::kListening) return Error{EINVAL};
  if (option == RDMA_ROUTE) {
    const auto* bytes = static_cast<const std::byte*>(value);
    route_.assign(bytes, bytes + size);
    return {};
  }
  auto given = option_value<int>(value, size);
  if (!given.ok()) return given.error();
  const uint64_t number = unsigned_of(given.value());
  switch (option) {
    case RDMA_SQSIZE:
      options_.sizes.set_send_slots(number);
      return {};
    case RDMA_RQSIZE:
      options_.sizes.set_receive_slots(number);
      return {};
    case RDMA_INLINE:
      options_.sizes.set_inline_bytes(number);
      return {};
    case RDMA_IOMAPSIZE:
      options_.sizes.set_iomap_count(number);
      return {};
    default:
      return Error{ENOTSUP};
  }
}

// --- getters ------------------------------------------------------------------------------------

Status StreamSocket::get_option(int level, int option, void* value, socklen_t* size) {
  if (!value || !size) return Error{EFAULT};
  const std::lock_guard guard(lock_);
  if (const auto stored = stored_option(level, option)) return store_value(*stored, value, size);
  switch (level) {
    case SOL_SOCKET:
      return get_socket_option(option, value, size);
    case IPPROTO_TCP:
      return get_tcp_option(option, value, size);
    case SOL_RDMA:
      return get_rdma_option(option, value, size);
    case IPPROTO_IP:
      if (option == IP_TOS) return store_value(options_.type_of_service, value, size);
      return Error{ENOTSUP};
    case IPPROTO_IPV6:
      if (option == IPV6_TCLASS) return store_value(options_.type_of_service, value, size);
      if (option == IPV6_V6ONLY)
        return store_value(int{options_.v6_only.value_or(false)}, value, size);
      return Error{ENOTSUP};
    default:
      return Error{ENOTSUP};
  }
}

Status StreamSocket::get_socket_option(int option, void* value, socklen_t* size) {
  if (auto limit = get_time_limit(option, value, size)) return *limit;
  switch (option) {
    case SO_ERROR: {
      progress();
      return store_value(take_error(), value, size);
    }
    case SO_TYPE:
      return store_value(int{SOCK_STREAM}, value, size);
    case SO_DOMAIN:
      return store_value(family_, value, size);
    case SO_PROTOCOL:
      return store_value(int{IPPROTO_TCP}, value, size);
    case SO_ACCEPTCONN:
      return store_value(int{state_ == State::kListening}, value, size);
    case SO_REUSEADDR:
    case SO_REUSEPORT:
      return store_value(int{options_.reuse_address}, value, size);
    case SO_KEEPALIVE:
      return store_value(int{options_.keepalive}, value, size);
    case SO_OOBINLINE:
      return store_value(int{options_.out_of_band_inline}, value, size);
    case SO_RCVBUF:
      return store_value(static_cast<int>(options_.sizes.receive_bytes), value, size);
    case SO_SNDBUF:
      return store_value(static_cast<int>(options_.sizes.send_bytes), value, size);
    case SO_LINGER:
      return store_value(options_.lingering, value, size);
    default:
      return Error{ENOTSUP};
  }
}

Status StreamSocket::get_tcp_option(int option, void* value, socklen_t* size) {
  const int mtu = id_->route.num_paths > 0 ? bytes_of_mtu(id_->route.path_rec->mtu) : 2048;
  switch (option) {
    case TCP_NODELAY:
      return store_value(int{options_.no_delay}, value, size);
    case TCP_MAXSEG:
      return store_value(mtu, value, size);
    case TCP_KEEPIDLE:
      return store_value(options_.keep_idle(), value, size);
    case TCP_KEEPINTVL:
      return store_value(options_.keep_interval(), value, size);
    case TCP_KEEPCNT:
      return store_value(options_.keep_probes(), value, size);
    case TCP_CONGESTION: {
      constexpr char kName[] = "rdma";
      return store_bytes(kName, sizeof kName, value, size);
    }
    case TCP_INFO: {
      tcp_info info{};
      info.tcpi_state = state_ == State::kConnected   ? TCP_ESTABLISHED
                        : state_ == State::kListening ? TCP_LISTEN
                        : connecting()                ? TCP_SYN_SENT
                                                      : TCP_CLOSE;
      info.tcpi_snd_mss = info.tcpi_rcv_mss = static_cast<uint32_t>(mtu);
      info.tcpi_snd_cwnd = options_.sizes.send_slots;
      return store_value(info, value, size);
    }
    default:
      return Error{ENOTSUP};
  }
}

Status StreamSocket::get_rdma_option(int option, void* value, socklen_t* size) {
  const Sizes& sizes = endpoint_ ? endpoint_->sizes() : options_.sizes;
  switch (option) {
    case RDMA_SQSIZE:
      return store_value(int{sizes.send_slots}, value, size);
    case RDMA_RQSIZE:
      return store_value(int{sizes.receive_slots}, value, size);
    case RDMA_INLINE:
      return store_value(int{sizes.inline_bytes}, value, size);
    case RDMA_IOMAPSIZE:
      return store_value(static_cast<int>(sizes.iomap_count), value, size);
    case RDMA_ROUTE: {
      if (!route_.empty()) {
        if (*size < route_.size()) return Error{EINVAL};
        return store_bytes(route_.data(), route_.size(), value, size);
      }
      if (*size < sizeof(ibv_path_data)) return Error{EINVAL};
      auto* to = static_cast<std::byte*>(value);
      socklen_t used = 0;
      for (int i = 0; i < id_->route.num_paths && used + sizeof(ibv_path_data) <= *size; ++i) {
        const ibv_path_data data = path_data_of(id_->route.path_rec[i]);
        std::memcpy(to + used, &data, sizeof data);
        used += sizeof data;
      }
      *size = used;
      return {};
    }
    default:
      return Error{ENOTSUP};
  }
}

}  // namespace verbena::rsocket
