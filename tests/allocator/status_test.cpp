// SPDX-License-Identifier: Apache-2.0
//
// Status and Result: which errno becomes which code, and who owns the value.
#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace tencache {
namespace {

TEST(StatusTest, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
}

TEST(StatusTest, ErrnoBecomesTheCodeTheCallerActsOn) {
  const std::pair<int, StatusCode> expected[] = {
      {ENOSPC, StatusCode::kNoSpace},         {EDQUOT, StatusCode::kNoSpace},
      {ENOMEM, StatusCode::kOutOfMemory},     {EPERM, StatusCode::kUnavailable},
      {ENOSYS, StatusCode::kUnavailable},     {EOPNOTSUPP, StatusCode::kUnavailable},
      {EINVAL, StatusCode::kInvalidArgument}, {EIO, StatusCode::kIoError},
      {EACCES, StatusCode::kIoError},
  };
  for (const auto& [error_number, code] : expected) {
    EXPECT_EQ(status_from_errno(error_number, "x").code(), code) << error_number;
  }
}

TEST(StatusTest, ErrnoMessageNamesAttemptAndReason) {
  EXPECT_EQ(status_from_errno(ENOSPC, "cannot grow the spill file").message(),
            "cannot grow the spill file: No space left on device");
}

TEST(ResultTest, HoldsEitherAValueOrAStatus) {
  Result<int> value = 7;
  ASSERT_TRUE(value.is_ok());
  EXPECT_EQ(value.value(), 7);
  Result<int> failure = Status(StatusCode::kNoSpace, "full");
  ASSERT_FALSE(failure.is_ok());
  EXPECT_EQ(failure.status().message(), "full");
}

TEST(ResultTest, MovesOnlyTypesOut) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  std::unique_ptr<int> owned = std::move(result).value();
  EXPECT_EQ(*owned, 3);
}

TEST(ResultTest, MovesToATargetOnlyWhatItHolds) {
  std::unique_ptr<int> owned;
  EXPECT_TRUE(Result<std::unique_ptr<int>>(std::make_unique<int>(3)).move_to(&owned).is_ok());
  EXPECT_EQ(*owned, 3);
  const Status refused =
      Result<std::unique_ptr<int>>(Status(StatusCode::kNoSpace, "full")).move_to(&owned);
  EXPECT_EQ(refused.message(), "full");
  EXPECT_EQ(*owned, 3) << "the target keeps its value";
}

Status fail_when(bool fails, int& reached) {
  TENCACHE_RETURN_IF_ERROR(fails ? Status(StatusCode::kIoError, "broken") : Status::ok());
  ++reached;
  return Status::ok();
}

TEST(ResultTest, ReturnIfErrorLeavesOnlyOnError) {
  int reached = 0;
  EXPECT_TRUE(fail_when(false, reached).is_ok());
  EXPECT_EQ(reached, 1);
  EXPECT_EQ(fail_when(true, reached).message(), "broken");
  EXPECT_EQ(reached, 1);
}

}  // namespace
}  // namespace tencache
