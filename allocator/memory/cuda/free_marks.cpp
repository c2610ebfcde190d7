// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/free_marks.h"

#include <algorithm>
#include <utility>

namespace tencache {
namespace {

// A stream whose memory nobody wants back keeps at most this many marks. Later marks cover what
// earlier ones did.
constexpr size_t kMarksMax = 1024;

}  // namespace

uint64_t FreeMarks::note_free(StreamSet owner, uint64_t bytes, uint64_t bytes_per_mark) {
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++count_;
    if (!StreamNumbers::is_one_stream(owner)) return number;
    MarkedLine& line = lines_[owner];
    line.freed = number;
    line.unmarked_bytes += bytes;
    if (line.unmarked_bytes < bytes_per_mark) return number;
  }
  make(owner);
  return number;
}

// The number is read before the mark is made, so that the mark covers all frees up to it.
bool FreeMarks::make(StreamSet owner) {
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    MarkedLine& line = lines_[owner];
    number = line.freed;
    line.unmarked_bytes = 0;
  }
  std::vector<StreamMark> made;
  if (!streams_.mark_all(owner, &made).is_ok()) return false;
  // A stream that is gone has done all its work.
  StreamMark mark = made.empty() ? StreamMark() : std::move(made.front());
  Mark gone;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  std::deque<Mark>& marks = lines_[owner].marks;
  if (!marks.empty() && marks.back().number >= number) return true;  // another thread made one
  marks.push_back({number, std::move(mark)});
  if (marks.size() <= kMarksMax) return true;
  gone = std::move(marks.front());
  marks.pop_front();
  return true;
}

void FreeMarks::poll() {
  for (const StreamSet owner : unfinished(false)) note_reached_of(owner);
  for (const StreamSet owner : unfinished(true)) {
    make(owner);
    note_reached_of(owner);
  }
}

// The streams that may still use freed memory, or only those of them that have no mark.
std::vector<StreamSet> FreeMarks::unfinished(bool are_without_mark) const {
  std::vector<StreamSet> owners;
  MutexLock lock(mutex_);
  for (const auto& [owner, line] : lines_) {
    if (line.over < line.freed && (!are_without_mark || line.marks.empty()))
      owners.push_back(owner);
  }
  return owners;
}

void FreeMarks::note_reached_of(StreamSet owner) {
  for (;;) {
    Mark first;
    {
      MutexLock lock(mutex_);
      const std::deque<Mark>& marks = lines_[owner].marks;
      if (marks.empty()) return;
      first = marks.front();
    }
    const Result<bool> is_reached = first.mark.is_reached();
    if (!is_reached.is_ok() || !is_reached.value()) return;
    note_reached(owner, first.number);
  }
}

bool FreeMarks::is_over(StreamSet owner, uint64_t number) const {
  if (!StreamNumbers::is_one_stream(owner)) return true;
  MutexLock lock(mutex_);
  const auto found = lines_.find(owner);
  return found != lines_.end() && number <= found->second.over;
}

FreeMarks::Line FreeMarks::line(StreamSet owner) const {
  MutexLock lock(mutex_);
  const auto found = lines_.find(owner);
  return found == lines_.end() ? Line() : Line(found->second);
}

bool FreeMarks::wait(StreamSet owner, uint64_t number) {
  bool has_made = false;
  while (!is_over(owner, number)) {
    Mark first;
    {
      MutexLock lock(mutex_);
      const std::deque<Mark>& marks = lines_[owner].marks;
      const auto covers = std::ranges::lower_bound(marks, number, {}, &Mark::number);
      if (covers != marks.end()) first = *covers;
    }
    if (first.number == 0) {
      // When this happens a second time, another thread must have found this mark reached, and the
      // free is over.
      if (std::exchange(has_made, true) || !make(owner)) return is_over(owner, number);
      continue;
    }
    if (!first.mark.wait().is_ok()) return false;
    note_reached(owner, first.number);
  }
  return true;
}

void FreeMarks::note_reached(StreamSet owner, uint64_t number) {
  std::vector<Mark> gone;  // perhaps the last copies: destroyed after the lock is released
  MutexLock lock(mutex_);
  MarkedLine& line = lines_[owner];
  line.over = std::max(line.over, number);
  while (!line.marks.empty() && line.marks.front().number <= number) {
    gone.push_back(std::move(line.marks.front()));
    line.marks.pop_front();
  }
}

}  // namespace tencache
