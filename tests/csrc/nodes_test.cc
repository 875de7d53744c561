/// The placement of ranks on their nodes, and groups of ranks that communicate among themselves.

#include "csrc/comm/nodes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/group_communicator.h"
#include "tests/csrc/collective_ranks.h"

namespace hvd_sparse {
namespace {

TEST(Nodes, OfAnyNumbersHaveASizeWhereTheyAreEqualAndInARow) {
  EXPECT_EQ(Nodes().LocalSize(), 1);
  EXPECT_EQ(Nodes({7}).LocalSize(), 1);
  EXPECT_EQ(Nodes({3, 1, 2}).LocalSize(), 1);
  EXPECT_EQ(Nodes({5, 5, 0, 0, 2, 2}).LocalSize(), 2);
  EXPECT_EQ(Nodes({4, 4, 4}).LocalSize(), 3);
  for (const std::vector<int>& nodes :
       {std::vector<int>{0, 0, 1}, {0, 1, 1}, {0, 1, 0, 1}, {0, 0, 1, 0}, {0, 0, 1, 1, 0, 0}}) {
    EXPECT_FALSE(Nodes(nodes).LocalSize().has_value());
  }
}

TEST(Nodes, PlaceEveryRank) {
  for (int size = 1; size <= 24; ++size) {
    for (int local_size = 1; local_size <= size; ++local_size) {
      if (size % local_size != 0) continue;
      for (int rank = 0; rank < size; ++rank) {
        const NodePlace place = Nodes::Of(size, local_size).PlaceOf(rank, size);
        EXPECT_EQ(place.local_size, local_size);
        EXPECT_EQ(place.local_rank, rank % local_size);
        EXPECT_EQ(place.node, rank / local_size);
        EXPECT_EQ(place.nodes, size / local_size);
      }
    }
  }
}

TEST(Nodes, ThatAreUnequalAreNamed) {
  try {
    Nodes({0, 0, 3}).PlaceOf(1, 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("the ranks are on nodes 0 0 3"), std::string::npos);
  }
  EXPECT_THROW(Nodes::Of(4, 0), Error);
}

TEST(GroupCommunicator, CarriesMessagesBetweenItsRanksAlone) {
  constexpr int kLocalSize = 3, kNodes = 4;
  OnRanks(kLocalSize * kNodes, [](Communicator& whole) {
    const int local_rank = whole.Rank() % kLocalSize;
    GroupCommunicator node(&whole, whole.Rank() - local_rank, 1, kLocalSize);
    GroupCommunicator across(&whole, local_rank, kLocalSize, kNodes);
    for (GroupCommunicator* group : {&node, &across}) {
      ASSERT_EQ(group->RankInExchange(group->Rank()), whole.Rank());
      std::vector<int> heard(group->Size(), -1);
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      const int own = whole.Rank();
      for (int peer = 0; peer < group->Size(); ++peer) {
        out.push_back({peer, &own, sizeof(own)});
        in.push_back({peer, &heard[peer], sizeof(own)});
      }
      group->Transfer(out, in, "a test");
      for (int peer = 0; peer < group->Size(); ++peer) {
        ASSERT_EQ(in[peer].bytes, sizeof(own));
        ASSERT_EQ(heard[peer], group->RankInExchange(peer));
      }
    }
  });
}

}  // namespace
}  // namespace hvd_sparse
