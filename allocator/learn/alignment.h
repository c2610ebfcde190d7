// SPDX-License-Identifier: Apache-2.0
//
// align_ends, align: which entries of one sequence correspond to which of another one that is
// nearly the same. A few may be missing on either side: an optimizer creates its state once, a
// batch is evaluated between two steps. Equal entries in order correspond. Where the sequences
// differ, the fewest entries are left out after which four in a row are equal again. So a
// correspondence is a good guess and no proof; whoever uses one verifies the conclusion.
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tencache {

inline constexpr size_t kUnmatched = ~size_t{0};

/// Returns, for each entry of `later`, the place of its counterpart in `earlier`, or kUnmatched.
/// Begins at the ends of both sequences and goes backwards until nothing corresponds any more.
std::vector<size_t> align_ends(std::span<const uint64_t> earlier, std::span<const uint64_t> later);

/// Does what align_ends() does, and then goes forwards from the starts of what is left of both
/// sequences.
std::vector<size_t> align(std::span<const uint64_t> earlier, std::span<const uint64_t> later);

}  // namespace tencache
