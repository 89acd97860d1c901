// A writer and a reader of one ring of shared memory, and an attacker that stores any value
// anywhere in it, as a hostile process at either end can. Neither side accesses memory outside the
// ring, blocks or ends the process. Until the attacker stores something, the reader gets every
// record once, in order and intact.
//
// The input is a list of steps: one byte selects the action, the next few bytes its arguments. The
// ring is one page, so that it is often full.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "base/check.h"
#include "datapath/shm/ring.h"

namespace {

using namespace verbena;
using namespace verbena::datapath;

constexpr size_t kBytes = 4096;
constexpr uint64_t kKinds = 5;

// One page, mapped twice in a row between guard pages.
std::byte* map_ring() {
  const int fd = ::memfd_create("ring_fuzz", MFD_CLOEXEC);
  VERBENA_CHECK(fd >= 0 && ::ftruncate(fd, kBytes) == 0);
  void* const around =
      ::mmap(nullptr, 4 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  VERBENA_CHECK(around != MAP_FAILED);
  std::byte* const base = static_cast<std::byte*>(around) + kBytes;
  for (std::byte* const at : {base, base + kBytes}) {
    VERBENA_CHECK(::mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at);
  }
  ::close(fd);
  return base;
}

class Fuzz {
 public:
  Fuzz(const uint8_t* data, size_t size, std::byte* base)
      : data_(data), size_(size), memory_{&control_, base, kBytes} {
    std::memset(base, 0, kBytes);
  }

  void run() {
    while (at_ < size_) {
      switch (byte() % 8) {
        case 0:
        case 1:
          write();
          break;
        case 2:
          writer_.publish();
          break;
        case 3:
          writer_.publish_early();
          break;
        case 4:
          read();
          break;
        case 5:
          reader_.release();
          read_ = 0;
          break;
        case 6:
          retract();
          break;
        default:
          attack();
      }
    }
  }

 private:
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  uint64_t number(unsigned bytes) {
    uint64_t n = 0;
    while (bytes-- > 0) n = n << 8 | byte();
    return n;
  }

  static std::vector<std::byte> body_of(uint32_t number, size_t bytes) {
    std::vector<std::byte> body(bytes);
    for (size_t i = 0; i < bytes; ++i) body[i] = static_cast<std::byte>(number * 31 + i);
    return body;
  }

  void write() {
    const uint32_t record = ++written_;
    const size_t bytes = byte() * size_t{11};
    const RecordWord word{.kind = RecordKind::Packet,
                          .header_bytes = sizeof record,
                          .body_bytes = static_cast<uint32_t>(bytes)};
    const auto body = body_of(record, bytes);
    const std::span<const std::byte> parts[1] = {body};
    if (!writer_.write(word, std::as_bytes(std::span(&record, 1)).data(), parts)) return;
    expected_.push_back(record);
  }

  void read() {
    RingReader::Record r;
    if (reader_.empty() || !reader_.next(r)) return;
    const std::byte* const end = memory_.base + 2 * kBytes;
    VERBENA_CHECK(r.front >= memory_.base && r.front + r.word.header_bytes <= end);
    VERBENA_CHECK(r.body >= memory_.base && r.body + r.word.body_bytes <= end);
    if (attacked_) return;
    uint32_t record = 0;
    VERBENA_CHECK(r.word.header_bytes == sizeof record && !expected_.empty());
    std::memcpy(&record, r.front, sizeof record);
    VERBENA_CHECK(record == expected_.front());
    const auto body = body_of(record, r.word.body_bytes);
    VERBENA_CHECK(std::equal(body.begin(), body.end(), r.body));
    expected_.pop_front();
    ++read_;
  }

  // Removes the unread records with an even number.
  void retract() {
    const auto mine = [](const RecordWord&, std::span<const std::byte> header) {
      uint32_t record = 1;
      if (header.size() == sizeof record) std::memcpy(&record, header.data(), sizeof record);
      return record % 2 == 0;
    };
    const bool wanted = byte() % 4 != 0;
    const bool taken = writer_.reclaim(mine, [&] { return wanted; });
    VERBENA_CHECK(attacked_ || taken == (wanted && read_ == 0 && !reading()));
    if (taken) std::erase_if(expected_, [](uint32_t record) { return record % 2 == 0; });
  }

  // The reader owns the published records from its first peek until it releases them.
  bool reading() const { return control_.owner.load() == RingOwner::Reader; }

  void attack() {
    attacked_ = true;
    const uint8_t what = byte();
    if (what % 4 == 0) {  // any word of the control block
      std::byte* const control = reinterpret_cast<std::byte*>(&control_);
      const size_t at = byte() * size_t{8} % sizeof control_;
      const uint64_t value = what % 8 == 0 ? number(2) : number(8);
      std::memcpy(control + at, &value, sizeof value);
      return;
    }
    const auto word = memory_.word(number(2) % kBytes & ~uint64_t{7});
    if (what % 4 == 1) {  // a possible record
      word.store(RecordWord{.kind = static_cast<RecordKind>(byte() % kKinds),
                            .address = byte(),
                            .header_bytes = byte(),
                            .payload_size_log2 = static_cast<uint8_t>(byte() % 20),
                            .body_bytes = static_cast<uint32_t>(number(2))}
                     .pack());
    } else if (what % 4 == 2) {  // the current record, longer or shorter
      word.store(word.load() + (uint64_t{byte()} << 32) - (uint64_t{byte()} << 32));
    } else {
      word.store(number(8));
    }
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  RingControl control_;
  RingMemory memory_;
  RingWriter writer_{memory_};
  RingReader reader_{memory_};
  std::deque<uint32_t> expected_;  // written and not read
  uint32_t written_ = 0;
  uint32_t read_ = 0;  // since the last release
  bool attacked_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::byte* const base = map_ring();
  Fuzz(data, size, base).run();
  return 0;
}
