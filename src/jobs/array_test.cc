// SPDX-License-Identifier: Apache-2.0
#include "jobs/array.h"

#include <gtest/gtest.h>

namespace vrun {
namespace {

void Add(v1::Array* array, uint32_t first, uint32_t last, uint32_t step = 1) {
  v1::Array::Range* range = array->add_ranges();
  range->set_first(first);
  range->set_last(last);
  range->set_step(step);
}

void Sweep(v1::Array* array, const std::string& name, const std::vector<std::string>& values) {
  v1::Array::Sweep* sweep = array->add_sweeps();
  sweep->set_name(name);
  for (const std::string& value : values) sweep->add_values(value);
}

std::string ErrorOf(const v1::Array& array) {
  const Status status = CheckArray(array);
  return status ? "" : status.error().message();
}

TEST(Array, PositionsAndIndexesAreTheInverseOfEachOther) {
  v1::Array array;
  Add(&array, 1, 1);
  Add(&array, 3, 3);
  Add(&array, 5, 10, 2);
  Add(&array, 20, 22);
  ASSERT_EQ(ErrorOf(array), "");
  const std::vector<uint32_t> expected = {1, 3, 5, 7, 9, 20, 21, 22};
  ASSERT_EQ(ElementCount(array), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(IndexAt(array, i), expected[i]);
    EXPECT_EQ(PositionOf(array, expected[i]), i);
  }
  for (const uint32_t none : {0u, 2u, 4u, 6u, 10u, 11u, 23u}) EXPECT_FALSE(Contains(array, none)) << none;
  EXPECT_EQ(MinIndex(array), 1u);
  EXPECT_EQ(MaxIndex(array), 22u);
  v1::Array uneven;
  Add(&uneven, 0, 10, 4);
  EXPECT_EQ(MaxIndex(uneven), 8u);
}

TEST(Array, ImpossibleArraysAreRefusedInOneLine) {
  v1::Array none;
  EXPECT_EQ(ErrorOf(none), "array: it has no elements: give indexes, such as 0-9");
  v1::Array down;
  Add(&down, 9, 3);
  EXPECT_EQ(ErrorOf(down), "array: 9-3 goes down: write it upwards");
  v1::Array overlap;
  Add(&overlap, 0, 9);
  Add(&overlap, 9, 12);
  EXPECT_EQ(ErrorOf(overlap), "array: 9-12 does not come after 0-9: give the indexes in order and only once");
  v1::Array large;
  Add(&large, 0, 1'000'000);
  EXPECT_NE(ErrorOf(large).find("1000001 elements are asked for, 1000000 are the limit"), std::string::npos);
  v1::Array high;
  Add(&high, 0, UINT32_MAX);
  EXPECT_NE(ErrorOf(high).find("the highest index is 999999999"), std::string::npos);
}

TEST(Array, SweepsAreChecked) {
  v1::Array empty;
  Sweep(&empty, "lr", {});
  EXPECT_NE(ErrorOf(empty).find("sweep lr: it has no values"), std::string::npos);
  v1::Array twice;
  Sweep(&twice, "lr", {"1"});
  Sweep(&twice, "lr", {"2"});
  EXPECT_NE(ErrorOf(twice).find("sweep lr: there are two of this name"), std::string::npos);
  v1::Array named;
  Sweep(&named, "1\n", {"2"});
  EXPECT_NE(ErrorOf(named).find("sweep 1\\n: a name has letters"), std::string::npos) << ErrorOf(named);
  v1::Array many;
  for (const char* name : {"a", "b", "c"}) Sweep(&many, name, std::vector<std::string>(200, "x"));
  Complete(&many);
  EXPECT_NE(ErrorOf(many).find("more than 1000000 combinations"), std::string::npos);
  v1::Array other;
  Sweep(&other, "lr", {"1", "2"});
  Add(&other, 0, 2);
  EXPECT_NE(ErrorOf(other).find("a sweep has the indexes 0-1"), std::string::npos);
}

TEST(Array, ASweepRunsEachCombinationOnce) {
  v1::Array array;
  Sweep(&array, "lr", {"0.1", "0.01"});
  Sweep(&array, "seed", {"7", "8", "9"});
  Complete(&array);
  ASSERT_EQ(ErrorOf(array), "");
  ASSERT_EQ(ElementCount(array), 6u);
  v1::RunSpec spec;
  for (const char* word : {"python", "--lr={lr}", "{seed}{seed}", "${lr}", "{}", "{\"lr\": 1}", "{"}) {
    spec.mutable_command()->add_argv(word);
  }
  spec.mutable_command()->add_environment("SEED={seed}");
  spec.mutable_command()->add_environment("{seed}=x{lr}");
  const v1::RunSpec second = ElementSpec(spec, array, 4);
  EXPECT_EQ(second.command().argv(1), "--lr=0.01");
  EXPECT_EQ(second.command().argv(2), "88");
  EXPECT_EQ(second.command().argv(3), "${lr}");
  EXPECT_EQ(second.command().argv(4), "{}");
  EXPECT_EQ(second.command().argv(5), "{\"lr\": 1}");
  EXPECT_EQ(second.command().argv(6), "{");
  EXPECT_EQ(second.command().environment(0), "SEED=8");
  EXPECT_EQ(second.command().environment(1), "{seed}=x0.01");
  EXPECT_EQ(ElementVariables(array, 0), (std::vector<std::string>{"lr=0.1", "seed=7"}));
  EXPECT_EQ(ElementVariables(array, 5), (std::vector<std::string>{"lr=0.01", "seed=9"}));
}

TEST(Array, AValueThatLooksLikeANameIsNotReplacedAgain) {
  v1::Array array;
  Sweep(&array, "a", {"{b}"});
  Sweep(&array, "b", {"{a}"});
  Complete(&array);
  v1::RunSpec spec;
  spec.mutable_command()->add_argv("{a}{b}");
  EXPECT_EQ(ElementSpec(spec, array, 0).command().argv(0), "{b}{a}");
}

TEST(Array, AMisspeltNameIsFoundAtSubmission) {
  v1::Array array;
  Sweep(&array, "lr", {"1"});
  Complete(&array);
  v1::RunSpec spec;
  for (const char* word : {"{lr}", "{rl}", "${HOME}", "{}", "{1}", "{rl}"}) spec.mutable_command()->add_argv(word);
  EXPECT_EQ(UnknownNames(spec, array), (std::vector<std::string>{"rl"}));
  EXPECT_EQ(CheckNames(spec, array).error().message(),
            "array: no sweep is called {rl}: use {lr}, or add --sweep rl=...");
  v1::Array plain;
  Add(&plain, 0, 3);
  EXPECT_TRUE(CheckNames(spec, plain));
}

TEST(Array, RangesReadAsPeopleWriteThem) {
  EXPECT_EQ(RangesText(RangesOf({})), "");
  EXPECT_EQ(RangesText(RangesOf({7})), "7");
  EXPECT_EQ(RangesText(RangesOf({1, 5})), "1,5");
  EXPECT_EQ(RangesText(RangesOf({1, 2, 5, 8, 11, 12, 13})), "1-2,5-11:3,12-13");
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < 1000; ++i) all.push_back(i);
  EXPECT_EQ(RangesText(RangesOf(all)), "0-999");
}

}  // namespace
}  // namespace vrun
