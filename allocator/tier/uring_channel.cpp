// SPDX-License-Identifier: Apache-2.0
//
// The io_uring channel: one ring with `depth` entries, the file registered. Each piece is one
// request, submitted as soon as it is cut, so that the disk works while the next piece is hashed.
//
// Choices. IORING_SETUP_SINGLE_ISSUER and a registered ring descriptor would bind a ring to one
// thread, but channels are lent to different threads over time. Polling for completion (IOPOLL,
// SQPOLL) would take a core from the training program.
//
// Note [Registered buffers]: the kernel looks up and pins the pages of each request, unless they
// lie in memory that was registered once. Reads go to fresh pages each time, so there is nothing to
// register. Writes of the engine come from the bounce ring, which is registered as one buffer. The
// cost: pages stay pinned (not swapped, not migrated) and count against the user's memlock limit
// while the channel lives, or while a forked child lives longer, since the child has the io_uring's
// descriptor. Three rules bound the cost. The bounce ring is registered only after each of its
// buffers was used, when with huge pages all of it is there anyway. It has at most kWindowPiecesMax
// pieces. A tier has no more channels with a bounce ring than evictions ran at once (disk_tier.h).
// Registration is all or nothing: half a bounce ring would take the whole of a small limit from the
// user's other programs. Where it is refused (memlock, seccomp) the same writes go as plain
// requests. Registration saves the kernel time for each request; the disk writes no faster for it.
//
// Note [Descriptors of a ring]: the registered file is a reference of its own, so that a request
// reaches the spill file whatever became of the descriptor's number. Where registration is refused,
// each request checks whether the number still stands for the file, as in the other channel. The
// ring itself has only its number, and each submission looks at that. (Kernels before 5.16 give all
// rings one inode. There another ring of the program's could be taken for this one.)
//
// Invariant: outside transfer() the kernel has no request of the ring's. When a submission fails
// for good, its entry stays in the submission queue and would be submitted later, with memory that
// may be gone by then. So the next transfer closes the ring and opens a new one. Threads: see
// io_channel.h.
#include <fcntl.h>
#include <liburing.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/kept_fd.h"
#include "base/log.h"
#include "base/units.h"
#include "tier/bounce_ring.h"
#include "tier/io_channel.h"
#include "tier/piece_sequence.h"

namespace tencache {
namespace {

// Pieces complete in any order and are reported in order. With a window of twice the depth, one
// slow piece does not idle the disk at once.
constexpr unsigned kWindowPerDepth = 2;

// A submission that the kernel refuses for the moment is tried at most this often.
constexpr unsigned kSubmitAttemptsMax = 1000;

// The kernel takes at most 1 GiB as one registered buffer.
static_assert(kWindowPiecesMax * kPieceBytes <= size_t{1} << 30);

Status refused(int error_number, const char* call) {
  const std::string attempt = "io_uring is not available: " + std::string(call);
  std::string message = status_from_errno(error_number, attempt).message();
  if (error_number == EPERM) {
    message += "; the container's seccomp profile or kernel.io_uring_disabled forbids it";
  } else if (error_number == ENOSYS) {
    message += "; the kernel was built without it";
  } else if (error_number == ENOMEM) {
    message += "; raise the memlock limit (ulimit -l)";
  }
  return {StatusCode::kUnavailable, std::move(message)};
}

constexpr const char* kRing = "an io_uring";

// Sets the ring's descriptor, which liburing 2.2 and newer keep twice.
template <typename Ring>
void set_ring_fd(Ring& ring, int fd) {
  ring.ring_fd = fd;
  if constexpr (requires { ring.enter_ring_fd; }) ring.enter_ring_fd = fd;
}

size_t window_of(unsigned depth) {
  return std::min(size_t{depth} * kWindowPerDepth, kWindowPiecesMax);
}

/// Registers the bounce ring as one buffer. Returns ok, or why the kernel does not pin it.
Status register_memory(io_uring& ring, const BounceRing& bounce_ring) {
  const iovec memory = {bounce_ring.memory().data(), bounce_ring.memory().size()};
  const int result = io_uring_register_buffers(&ring, &memory, 1);
  if (result == 0) return Status::ok();
  const std::string size = format_bytes(memory.iov_len);
  std::string message =
      status_from_errno(-result, "the kernel does not pin " + size + " of buffers").message();
  if (result == -ENOMEM) {
    message += "; raise the memlock limit (ulimit -l, LimitMEMLOCK=, --ulimit memlock=)";
  } else if (result == -EPERM || result == -EACCES) {
    message += "; the container's seccomp profile forbids io_uring_register";
  }
  return {StatusCode::kUnavailable, std::move(message)};
}

class UringChannel final : public IoChannel {
 public:
  UringChannel(int fd, unsigned depth, bool registers_buffers)
      : fd_(fd),
        file_(FileIdentity::of(fd)),
        depth_(depth),
        registers_buffers_(registers_buffers) {}
  ~UringChannel() override { close_ring(); }

  Status open_ring();
  Status try_registration();
  TransferResult transfer(IoDirection direction, std::span<const IoSegment> segments,
                          PieceObserver* observer) override;
  const char* name() const override { return "io_uring"; }

 private:
  void close_ring();
  Status keep_ring_fd();
  Status make_bounce_ring();
  void register_bounce_ring();
  void request(IoDirection direction, Piece& piece, PieceSequence& sequence);
  int submit();
  void reap(IoDirection direction, PieceSequence& sequence, bool waits);

  const int fd_;
  const FileIdentity file_;
  const unsigned depth_;
  const bool registers_buffers_;
  io_uring ring_ = {};
  FileIdentity ring_identity_;
  std::unique_ptr<BounceRing> bounce_ring_;  // made by the first transfer that needs it
  bool is_open_ = false;
  bool is_file_registered_ = false;
  bool was_registration_tried_ = false;  // of the bounce ring with this ring
  bool is_bounce_ring_registered_ = false;
  bool is_spoiled_ = false;  // the submission queue holds an entry that must never be submitted
};

Status UringChannel::open_ring() {
  io_uring_params params = {};
  // Each turn of the loop looks for completions anyway; without the flags the kernel interrupts the
  // thread for each completion. Kernels before 5.19 do not know the flags.
  params.flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  int result = io_uring_queue_init_params(depth_, &ring_, &params);
  if (result == -EINVAL) {
    params = {};
    result = io_uring_queue_init_params(depth_, &ring_, &params);
  }
  if (result < 0) return refused(-result, "io_uring_setup");
  is_open_ = true;
  is_spoiled_ = false;
  was_registration_tried_ = is_bounce_ring_registered_ = false;
  TENCACHE_RETURN_IF_ERROR(keep_ring_fd());
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  const bool has_operations = probe != nullptr &&
                              io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                              io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  if (probe != nullptr) io_uring_free_probe(probe);
  if (!has_operations) {
    close_ring();
    return {StatusCode::kUnavailable,
            "io_uring is not available: the kernel is older than 5.6 and lacks its read and write"};
  }
  file_.require(fd_, kSpillFile);
  // The registration (Note [Descriptors of a ring]) also saves a reference count on the file per
  // request.
  is_file_registered_ = io_uring_register_files(&ring_, &fd_, 1) == 0;
  file_.require(fd_, kSpillFile);
  return Status::ok();
}

// Keeps the ring's descriptor above the standard ones. The kernel opens it close-on-exec, under the
// lowest number that is free.
Status UringChannel::keep_ring_fd() {
  UniqueFd above = above_standard(UniqueFd(ring_.ring_fd));
  const int error_number = errno;
  const bool is_valid = above.is_valid();
  set_ring_fd(ring_, above.release());
  ring_identity_ = FileIdentity::of(ring_.ring_fd);
  if (is_valid) return Status::ok();
  close_ring();
  return refused(error_number, "fcntl");
}

void UringChannel::close_ring() {
  if (!is_open_) return;
  // A number that no longer stands for our ring is not ours to close.
  if (!ring_identity_.is_of(ring_.ring_fd)) set_ring_fd(ring_, -1);
  io_uring_queue_exit(&ring_);
  is_open_ = false;
}

Status UringChannel::make_bounce_ring() {
  if (bounce_ring_ != nullptr) return Status::ok();
  return BounceRing::create(window_of(depth_)).move_to(&bounce_ring_);
}

void UringChannel::register_bounce_ring() {
  if (!registers_buffers_ || was_registration_tried_ || !bounce_ring_->is_all_used()) return;
  was_registration_tried_ = true;
  const Status status = register_memory(ring_, *bounce_ring_);
  is_bounce_ring_registered_ = status.is_ok();
  if (!status.is_ok()) TENCACHE_LOG_DEBUG("%s", status.message().c_str());
}

Status UringChannel::try_registration() {
  TENCACHE_RETURN_IF_ERROR(make_bounce_ring());
  return register_memory(ring_, *bounce_ring_);
}

TransferResult UringChannel::transfer(IoDirection direction, std::span<const IoSegment> segments,
                                      PieceObserver* observer) {
  if (is_spoiled_) close_ring();
  if (!is_open_) {
    if (Status status = open_ring(); !status.is_ok()) return {std::move(status), false, 0};
  }
  if (has_segment_without_memory(segments)) {
    if (Status status = make_bounce_ring(); !status.is_ok()) return {std::move(status), false, 0};
    register_bounce_ring();
  }
  PieceSequence sequence(direction, segments, window_of(depth_), observer, bounce_ring_.get());
  while (sequence.is_active()) {
    Piece* piece = nullptr;
    while (sequence.in_flight() < depth_ && (piece = sequence.next()) != nullptr) {
      request(direction, *piece, sequence);
    }
    // Reporting may hash for tens of microseconds; meanwhile completions make room for more.
    const bool reported = sequence.report_one();
    if (sequence.in_flight() > 0) reap(direction, sequence, !reported);
  }
  return sequence.take_result();
}

void UringChannel::request(IoDirection direction, Piece& piece, PieceSequence& sequence) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  TENCACHE_CHECK(entry != nullptr, "the ring of %u entries is full", depth_);
  const int file = is_file_registered_ ? 0 : fd_;
  const auto bytes = static_cast<unsigned>(piece.rest_bytes());
  if (direction == IoDirection::kRead) {
    io_uring_prep_read(entry, file, piece.rest_memory(), bytes, piece.rest_offset());
  } else if (piece.is_bounced && is_bounce_ring_registered_) {
    constexpr int kOnlyBuffer = 0;
    io_uring_prep_write_fixed(entry, file, piece.rest_memory(), bytes, piece.rest_offset(),
                              kOnlyBuffer);
  } else {
    io_uring_prep_write(entry, file, piece.rest_memory(), bytes, piece.rest_offset());
  }
  if (is_file_registered_) entry->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data(entry, &piece);
  if (const int error_number = submit(); error_number != 0) {
    is_spoiled_ = true;
    sequence.abandon(piece, error_number);
  }
}

/// Submits the one queued entry. Returns 0, or the errno that does not go away.
int UringChannel::submit() {
  if (!is_file_registered_) file_.require(fd_, kSpillFile);
  ring_identity_.require(ring_.ring_fd, kRing);
  int result = 0;
  for (unsigned attempt = 0; attempt < kSubmitAttemptsMax; ++attempt) {
    result = io_uring_submit(&ring_);
    if (result > 0) {
      if (!is_file_registered_) file_.require(fd_, kSpillFile);
      return 0;
    }
    const bool passes = result == 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY;
    if (!passes) break;
    sched_yield();
  }
  return result == 0 ? EBUSY : -result;
}

/// Takes the completions that are there; waits for the first one if `waits`.
void UringChannel::reap(IoDirection direction, PieceSequence& sequence, bool waits) {
  io_uring_cqe* completion = nullptr;
  for (;;) {
    const int result =
        waits ? io_uring_wait_cqe(&ring_, &completion) : io_uring_peek_cqe(&ring_, &completion);
    if (result == -EAGAIN && !waits) return;
    if (result == -EINTR || result == -EAGAIN) continue;
    if (result < 0) {
      ring_identity_.require(ring_.ring_fd, kRing);
      // Requests are in flight on memory of the program, and nothing is left to await them with.
      fatal("cannot wait for io_uring: %s", strerrordesc_np(-result));
    }
    auto* piece = static_cast<Piece*>(io_uring_cqe_get_data(completion));
    const int answer = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    if (sequence.settle(*piece, answer)) request(direction, *piece, sequence);
    waits = false;
    if (sequence.in_flight() == 0) return;
  }
}

}  // namespace

Result<std::unique_ptr<IoChannel>> make_uring_channel(int fd, unsigned depth,
                                                      bool registers_buffers) {
  TENCACHE_CHECK(depth > 0);
  auto channel = std::make_unique<UringChannel>(fd, depth, registers_buffers);
  TENCACHE_RETURN_IF_ERROR(channel->open_ring());
  return std::unique_ptr<IoChannel>(std::move(channel));
}

Status try_registered_buffers(int fd, unsigned depth) {
  UringChannel channel(fd, depth, /*registers_buffers=*/true);
  TENCACHE_RETURN_IF_ERROR(channel.open_ring());
  return channel.try_registration();
}

}  // namespace tencache
