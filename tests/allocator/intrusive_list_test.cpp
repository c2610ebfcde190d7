// SPDX-License-Identifier: Apache-2.0
//
// The intrusive list against std::list, and elements in two lists at once.
#include "memory/intrusive_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <vector>

#include "support/random.h"

namespace tencache {
namespace {

struct Element {
  ListHook<Element> first;
  ListHook<Element> second;
};

using FirstList = IntrusiveList<Element, &Element::first>;
using SecondList = IntrusiveList<Element, &Element::second>;

template <typename List>
std::vector<Element*> forwards(const List& list) {
  std::vector<Element*> elements;
  for (Element* element = list.front(); element != nullptr; element = List::next(element)) {
    elements.push_back(element);
  }
  return elements;
}

template <typename List>
std::vector<Element*> backwards(const List& list) {
  std::vector<Element*> elements;
  for (Element* element = list.back(); element != nullptr; element = List::previous(element)) {
    elements.push_back(element);
  }
  return elements;
}

TEST(IntrusiveListTest, BehavesLikeAList) {
  Random random;
  std::vector<Element> elements(30);
  FirstList list;
  std::list<Element*> model;
  for (int step = 0; step < 5000; ++step) {
    Element* element = &elements[random.between(0, elements.size() - 1)];
    if (element->first.linked) {
      list.remove(element);
      model.remove(element);
    } else if (random.chance(0.5)) {
      list.push_front(element);
      model.push_front(element);
    } else {
      const auto place =
          std::find(model.begin(), model.end(), &elements[random.between(0, elements.size() - 1)]);
      const bool is_found = place != model.end();
      list.insert_after(is_found ? *place : nullptr, element);
      model.insert(is_found ? std::next(place) : model.begin(), element);
    }
    ASSERT_EQ(list.is_empty(), model.empty());
    ASSERT_EQ(forwards(list), std::vector<Element*>(model.begin(), model.end()));
    ASSERT_EQ(backwards(list), std::vector<Element*>(model.rbegin(), model.rend()));
  }
}

TEST(IntrusiveListTest, ElementMayBeInTwoLists) {
  Element a;
  Element b;
  FirstList first;
  SecondList second;
  first.push_front(&a);
  first.push_front(&b);
  second.push_front(&b);
  second.push_front(&a);
  EXPECT_EQ(forwards(first), (std::vector<Element*>{&b, &a}));
  EXPECT_EQ(forwards(second), (std::vector<Element*>{&a, &b}));
  first.remove(&a);
  EXPECT_EQ(forwards(first), std::vector<Element*>{&b});
  EXPECT_EQ(forwards(second), (std::vector<Element*>{&a, &b}));
}

#ifndef NDEBUG
TEST(IntrusiveListDeathTest, ElementIsInAListOnce) {
  Element element;
  FirstList list;
  EXPECT_DEATH(list.remove(&element), "check failed");
  list.push_front(&element);
  EXPECT_DEATH(list.push_front(&element), "check failed");
}
#endif

}  // namespace
}  // namespace tencache
