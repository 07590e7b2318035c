// PageCache: pages of a store in memory of a GPU, of which there is less than the store has. Any number of warps take
// pages and give them back; no page is written.
//
// One source for CUDA kernels, for threads of the CPU and for a scheduler that explores interleavings: what differs is
// the Platform (see queue_pair.h). Kernels use penstock/device_array.cuh.
//
// How it works:
//  1. Each page of the store has a word. Taking a page is one addition to it, which counts a holder and a use and tells
//     whether the page is resident, and in which frame. Giving it back is one subtraction.
//  2. Who finds a page absent marks it as being fetched; one succeeds. That one looks for a frame, reads the page into
//     it, and publishes it. All others wait for the mark to go, which it does however the read ends, or until their
//     own deadline. Lanes that act together fetch before they wait, so two groups never wait for each other.
//  3. A frame is found by a clock: the hand passes pages that are held, and those that were used since it last came.
//     After a few looks it spares only those that are held. Nobody waits for a frame: who finds none after some more
//     looks does without, and reads past the cache. So a cache of any size serves any number of threads, and a holder
//     that never gives back costs others one frame and nothing else.
//  4. A page is taken from its frame by one exchange of its word, from "resident, in this frame, no holders" to
//     "absent". Every other change of the word makes that fail.
//
// Invariants:
//  I1. The bytes of a frame are written only by who has marked the frame's page as being fetched, and read only by
//      holders of a resident page. The exchange (4) comes after the last of these.
//  I2. A frame has at most one page that is resident or being fetched in it: Frame::page, unless that is stale. A stale
//      one does no harm, since the word of a page names its frame.
//
// Thread safety: any number of groups. Lifetime: the memory named here outlives all of them.
#pragma once

#include "penstock/queue_set.h"

namespace penstock::device {

// What is known of a page. The count of uses is the highest, so that it wraps without touching the rest.
struct PageWord {
  static constexpr unsigned holder_bits = 22;
  static constexpr unsigned frame_bits = 28;
  static constexpr unsigned state_shift = holder_bits + frame_bits;
  static constexpr unsigned use_shift = state_shift + 2;

  enum State : std::uint32_t { absent, being_fetched, resident };

  static constexpr std::uint64_t one_holder = 1;
  static constexpr std::uint64_t one_use = std::uint64_t{1} << use_shift;

  std::uint64_t bits = 0;

  PENSTOCK_ANYWHERE static constexpr std::uint64_t in_state(State state) {
    return static_cast<std::uint64_t>(state) << state_shift;
  }
  PENSTOCK_ANYWHERE static constexpr std::uint64_t in_frame(std::uint32_t frame) {
    return static_cast<std::uint64_t>(frame) << holder_bits;
  }
  PENSTOCK_ANYWHERE std::uint32_t holders() const {
    return static_cast<std::uint32_t>(bits) & ((1U << holder_bits) - 1);
  }
  PENSTOCK_ANYWHERE std::uint32_t frame() const {
    return static_cast<std::uint32_t>(bits >> holder_bits) & ((1U << frame_bits) - 1);
  }
  PENSTOCK_ANYWHERE State state() const { return static_cast<State>(bits >> state_shift & 3); }
  PENSTOCK_ANYWHERE std::uint32_t uses() const { return static_cast<std::uint32_t>(bits >> use_shift); }
};

struct Frame {
  static constexpr std::uint32_t nobody = 0xffffffff;

  std::uint32_t page = nobody;  // whose bytes it has
  std::uint32_t uses = 0;       // of that page, when the clock last came by
};

// Sums, of pages: those that a group takes together for several lanes count once.
struct alignas(64) PageCounts {
  std::uint64_t hits = 0;
  std::uint64_t fetched = 0;  // into a frame
  std::uint64_t joined = 0;   // found while another group fetched them
  std::uint64_t passed = 0;   // read past the cache, since no frame was to be had
  std::uint64_t failed = 0;
};

struct PageCacheState {
  static constexpr std::uint32_t count_stripes = 256;  // more than a GPU has multiprocessors

  std::uint32_t page_shift = 0;
  std::uint32_t frame_count = 0;   // at least 1, at most 2^28
  std::uint64_t* words = nullptr;  // PageWords, one for each page
  Frame* frames = nullptr;
  unsigned char* memory = nullptr;  // of all frames
  PageCounts* counts = nullptr;     // count_stripes of them, so that groups rarely meet there
  alignas(128) std::uint64_t hand = 0;
};

// A lane's page. Without bytes and without an error it has to be read past the cache.
struct TakenPage {
  const unsigned char* bytes = nullptr;
  IoResult result;
};

// What one group does. Every function is entered by all lanes of the group together.
template <typename Platform>
class PageCache {
 public:
  // Reads what taking a resident page needs at once: on a GPU each load after an acquisition goes far.
  PENSTOCK_ANYWHERE PageCache(PageCacheState& state, Platform& platform)
      : c_(state),
        p_(platform),
        words_(state.words),
        memory_(state.memory),
        counts_(state.counts),
        page_shift_(state.page_shift) {}

  PENSTOCK_ANYWHERE std::uint64_t page_bytes() const { return std::uint64_t{1} << page_shift_; }
  PENSTOCK_ANYWHERE std::uint64_t page_of(std::uint64_t offset) const { return offset >> page_shift_; }
  PENSTOCK_ANYWHERE std::uint64_t within_page(std::uint64_t offset) const { return offset & (page_bytes() - 1); }

  // Takes a page for each lane that wants one, if it is resident. Others must take_missing.
  PENSTOCK_ANYWHERE TakenPage take(std::uint32_t page, bool wants) {
    TakenPage taken;
    const PageWord word{wants ? p_.add_acquire(words_[page], PageWord::one_use | PageWord::one_holder) : 0};
    const bool is_hit = word.state() == PageWord::resident;
    if (is_hit) taken.bytes = bytes_of(word.frame());
    count(&PageCounts::hits, is_hit);
    return taken;
  }
  // For each lane that wanted a page and did not get it; several may want the same. fetch(page, to, wants) reads a page
  // for each lane that wants that, and is entered by all lanes together.
  template <typename Fetch>
  PENSTOCK_ANYWHERE TakenPage take_missing(std::uint32_t page, bool is_missing, std::uint64_t deadline, Fetch fetch) {
    TakenPage taken;
    bool is_waiting = is_missing;
    bool has_joined = false;
    while (true) {
      const bool claims = is_waiting && claim(page);
      if (p_.any(claims)) {
        const TakenPage fetched = fetch_claimed(page, claims, fetch);
        if (claims) taken = fetched;
        is_waiting = is_waiting && !claims;
      }
      const PageWord word{is_waiting ? p_.load_acquire(words_[page]) : 0};
      if (word.state() == PageWord::resident) {
        taken.bytes = bytes_of(word.frame());
        has_joined = true;
        is_waiting = false;
      }
      if (is_waiting && p_.now() >= deadline) {
        p_.add_release(words_[page], 0 - PageWord::one_holder);
        taken.result.status = IoStatus::timed_out;
        is_waiting = false;
      }
      if (!p_.any(is_waiting)) break;
      p_.pause();
    }
    count(&PageCounts::joined, has_joined);
    count(&PageCounts::failed, is_missing && !taken.result.ok());
    return taken;
  }
  // A page with bytes must be given back.
  // REQUIRES: no lane of the group looks at its bytes any more.
  PENSTOCK_ANYWHERE void give_back(std::uint32_t page, bool holds) {
    if (holds) p_.add_release(words_[page], 0 - PageWord::one_holder);
  }

 private:
  static constexpr std::uint32_t none = 0xffffffff;
  static constexpr std::uint32_t polite_looks = 8;  // that pass pages which were used
  static constexpr std::uint32_t looks = 24;

  PENSTOCK_ANYWHERE unsigned char* bytes_of(std::uint32_t frame) const {
    return memory_ + (static_cast<std::uint64_t>(frame) << page_shift_);
  }
  PENSTOCK_ANYWHERE void count(std::uint64_t PageCounts::*what, bool value) {
    const std::uint32_t more = p_.count(value);
    if (more == 0 || !p_.is_leader()) return;
    p_.add(counts_[p_.stripe() % PageCacheState::count_stripes].*what, more);
  }

  // Marks the page as being fetched, if it is absent.
  PENSTOCK_ANYWHERE bool claim(std::uint32_t page) {
    std::uint64_t bits = p_.load_acquire(words_[page]);
    while (PageWord{bits}.state() == PageWord::absent) {
      if (p_.compare_exchange(words_[page], bits, bits + PageWord::in_state(PageWord::being_fetched))) return true;
    }
    return false;
  }

  template <typename Fetch>
  PENSTOCK_ANYWHERE TakenPage fetch_claimed(std::uint32_t page, bool claims, Fetch fetch) {
    TakenPage taken;
    const std::uint32_t frame = find_frame(page, claims);
    const bool has_frame = frame != none;
    if (p_.any(has_frame)) {
      unsigned char* const to = has_frame ? bytes_of(frame) : nullptr;
      const IoResult result = fetch(page, to, has_frame);
      p_.sync();  // lanes may have written for each other
      if (has_frame) taken.result = result;
      if (has_frame && result.ok()) taken.bytes = to;
    }
    constexpr std::uint64_t mark = PageWord::in_state(PageWord::being_fetched);
    if (taken.bytes != nullptr) {
      const std::uint64_t is_there = PageWord::in_state(PageWord::resident) | PageWord::in_frame(frame);
      p_.add_release(words_[page], is_there - mark);
    } else if (claims) {
      if (has_frame) p_.store_release(c_.frames[frame].page, Frame::nobody);
      p_.add_release(words_[page], 0 - mark - PageWord::one_holder);
    }
    count(&PageCounts::fetched, taken.bytes != nullptr);
    count(&PageCounts::passed, claims && !has_frame);
    return taken;
  }

  // A frame for each lane that wants one, or none.
  PENSTOCK_ANYWHERE std::uint32_t find_frame(std::uint32_t page, bool wants) {
    std::uint32_t frame = none;
    for (std::uint32_t look = 0; look < looks; ++look) {
      const bool is_looking = wants && frame == none;
      const std::uint32_t lanes = p_.count(is_looking);
      if (lanes == 0) break;
      const std::uint64_t first = p_.broadcast(p_.is_leader() ? p_.fetch_add(c_.hand, std::uint64_t{lanes}) : 0);
      const auto at = static_cast<std::uint32_t>((first + p_.rank_among(is_looking)) % c_.frame_count);
      if (is_looking && take_frame(at, page, look < polite_looks)) frame = at;
    }
    return frame;
  }
  PENSTOCK_ANYWHERE bool take_frame(std::uint32_t number, std::uint32_t page, bool is_polite) {
    Frame& frame = c_.frames[number];
    std::uint32_t owner = p_.load_acquire(frame.page);
    if (owner == Frame::nobody) return p_.compare_exchange(frame.page, owner, page);
    PageWord word{p_.load_acquire(words_[owner])};
    if (word.state() != PageWord::resident || word.frame() != number || word.holders() != 0) return false;
    if (is_polite && p_.load_acquire(frame.uses) != word.uses()) {
      p_.store_relaxed(frame.uses, word.uses());
      return false;
    }
    const std::uint64_t gone = word.bits - PageWord::in_state(PageWord::resident) - PageWord::in_frame(number);
    if (!p_.compare_exchange(words_[owner], word.bits, gone)) return false;
    p_.store_release(frame.page, page);
    return true;
  }

  PageCacheState& c_;
  Platform& p_;
  std::uint64_t* const words_;
  unsigned char* const memory_;
  PageCounts* const counts_;
  const std::uint32_t page_shift_;
};

}  // namespace penstock::device
