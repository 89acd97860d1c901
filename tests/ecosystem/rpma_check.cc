// librpma: the client writes into the server's memory, flushes (a READ after the WRITE), reads it
// back, and reports that with a message; the server checks its memory and replies. rpma_check
// listen|connect ADDRESS PORT
#include <librpma.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t kBytes = 1 << 20;
constexpr size_t kLetter = 64;

void must(int error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, rpma_err_2str(error));
  std::exit(1);
}
void right(bool is, const char* what) {
  if (is) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

struct Memory {
  std::vector<char> bytes;
  rpma_mr_local* mr = nullptr;
  Memory(rpma_peer* peer, size_t size, int usage) : bytes(size) {
    must(rpma_mr_reg(peer, bytes.data(), size, usage, &mr), "rpma_mr_reg");
  }
  ~Memory() { rpma_mr_dereg(&mr); }
};

char pattern(size_t i) { return static_cast<char>(i * 7 + i / 1000); }

void expect_event(rpma_conn* connection, rpma_conn_event wanted) {
  rpma_conn_event event = RPMA_CONN_UNDEFINED;
  must(rpma_conn_next_event(connection, &event), "rpma_conn_next_event");
  right(event == wanted, rpma_utils_conn_event_2str(event));
}

ibv_wc next_completion(rpma_conn* connection) {
  rpma_cq* queue = nullptr;
  must(rpma_conn_get_cq(connection, &queue), "rpma_conn_get_cq");
  ibv_wc wc{};
  int got = rpma_cq_get_wc(queue, 1, &wc, nullptr);
  while (got == RPMA_E_NO_COMPLETION) {
    must(rpma_cq_wait(queue), "rpma_cq_wait");
    got = rpma_cq_get_wc(queue, 1, &wc, nullptr);
  }
  must(got, "rpma_cq_get_wc");
  right(wc.status == IBV_WC_SUCCESS, "a completion");
  return wc;
}

void serve(rpma_peer* peer, const char* address, const char* port) {
  Memory store(
      peer, kBytes,
      RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
  Memory letter(peer, kLetter, RPMA_MR_USAGE_RECV | RPMA_MR_USAGE_SEND);
  size_t size = 0;
  must(rpma_mr_get_descriptor_size(store.mr, &size), "rpma_mr_get_descriptor_size");
  std::vector<char> descriptor(size);
  must(rpma_mr_get_descriptor(store.mr, descriptor.data()), "rpma_mr_get_descriptor");

  rpma_ep* endpoint = nullptr;
  must(rpma_ep_listen(peer, address, port, &endpoint), "rpma_ep_listen");
  rpma_conn_req* request = nullptr;
  must(rpma_ep_next_conn_req(endpoint, nullptr, &request), "rpma_ep_next_conn_req");
  must(rpma_conn_req_recv(request, letter.mr, 0, kLetter, nullptr), "rpma_conn_req_recv");
  rpma_conn_private_data data{descriptor.data(), static_cast<uint8_t>(size)};
  rpma_conn* connection = nullptr;
  must(rpma_conn_req_connect(&request, &data, &connection), "rpma_conn_req_connect");
  expect_event(connection, RPMA_CONN_ESTABLISHED);

  right(next_completion(connection).opcode == IBV_WC_RECV, "the message");
  right(std::strcmp(letter.bytes.data(), "written") == 0, "what it says");
  for (size_t i = 0; i < kBytes; ++i) right(store.bytes[i] == pattern(i), "what was written");
  std::strcpy(letter.bytes.data(), "seen");
  must(rpma_send(connection, letter.mr, 0, kLetter, RPMA_F_COMPLETION_ALWAYS, nullptr),
       "rpma_send");
  right(next_completion(connection).opcode == IBV_WC_SEND, "the answer");
  expect_event(connection, RPMA_CONN_CLOSED);
  must(rpma_conn_disconnect(connection), "rpma_conn_disconnect");
  must(rpma_conn_delete(&connection), "rpma_conn_delete");
  must(rpma_ep_shutdown(&endpoint), "rpma_ep_shutdown");
}

void ask(rpma_peer* peer, const char* address, const char* port) {
  Memory source(peer, kBytes, RPMA_MR_USAGE_WRITE_SRC), back(peer, kBytes, RPMA_MR_USAGE_READ_DST);
  Memory letter(peer, kLetter, RPMA_MR_USAGE_SEND), answer(peer, kLetter, RPMA_MR_USAGE_RECV);
  for (size_t i = 0; i < kBytes; ++i) source.bytes[i] = pattern(i);
  rpma_conn_req* request = nullptr;
  must(rpma_conn_req_new(peer, address, port, nullptr, &request), "rpma_conn_req_new");
  must(rpma_conn_req_recv(request, answer.mr, 0, kLetter, nullptr), "rpma_conn_req_recv");
  rpma_conn* connection = nullptr;
  must(rpma_conn_req_connect(&request, nullptr, &connection), "rpma_conn_req_connect");
  expect_event(connection, RPMA_CONN_ESTABLISHED);
  rpma_conn_private_data data{};
  must(rpma_conn_get_private_data(connection, &data), "rpma_conn_get_private_data");
  rpma_mr_remote* store = nullptr;
  must(rpma_mr_remote_from_descriptor(data.ptr, data.len, &store),
       "rpma_mr_remote_from_descriptor");

  must(rpma_write(connection, store, 0, source.mr, 0, kBytes, RPMA_F_COMPLETION_ON_ERROR, nullptr),
       "rpma_write");
  must(rpma_flush(connection, store, 0, kBytes, RPMA_FLUSH_TYPE_VISIBILITY,
                  RPMA_F_COMPLETION_ALWAYS, nullptr),
       "rpma_flush");
  next_completion(connection);
  must(rpma_read(connection, back.mr, 0, store, 0, kBytes, RPMA_F_COMPLETION_ALWAYS, nullptr),
       "rpma_read");
  right(next_completion(connection).opcode == IBV_WC_RDMA_READ, "the read");
  right(back.bytes == source.bytes, "what was read back");
  std::strcpy(letter.bytes.data(), "written");
  must(rpma_send(connection, letter.mr, 0, kLetter, RPMA_F_COMPLETION_ON_ERROR, nullptr),
       "rpma_send");
  right(next_completion(connection).opcode == IBV_WC_RECV, "the answer");
  right(std::strcmp(answer.bytes.data(), "seen") == 0, "what the answer says");
  must(rpma_mr_remote_delete(&store), "rpma_mr_remote_delete");
  must(rpma_conn_disconnect(connection), "rpma_conn_disconnect");
  expect_event(connection, RPMA_CONN_CLOSED);
  must(rpma_conn_delete(&connection), "rpma_conn_delete");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const bool listens = std::string(argv[1]) == "listen";
  ibv_context* device = nullptr;
  must(rpma_utils_get_ibv_context(
           argv[2], listens ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &device),
       "rpma_utils_get_ibv_context");
  rpma_peer* peer = nullptr;
  must(rpma_peer_new(device, &peer), "rpma_peer_new");
  listens ? serve(peer, argv[2], argv[3]) : ask(peer, argv[2], argv[3]);
  must(rpma_peer_delete(&peer), "rpma_peer_delete");
  std::puts("ok");
}
