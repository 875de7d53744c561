/// Ranks agree on the transport that connects their devices: all get the same result and reasons.

#include "csrc/collectives/device_agreement.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr const char* kVariable = "HVD_SPARSE_TEST_OPTION";

/// An option that never connects.
struct FakeOption {
  std::string name;
  char id;
  std::string problem = {}, no_invitation = {};

  const GpuTransportOption option{name,
                                  kVariable,
                                  /*is_default=*/false,
                                  [this](const std::string& memory_problem, int device) {
                                    if (!problem.empty()) Throw(ErrorKind::kUnavailable, problem);
                                    return Concat("device ", device, ", ", memory_problem);
                                  },
                                  nullptr,
                                  [](const std::vector<std::string>& ranks) {
                                    for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
                                      if (ranks[rank] == "odd")
                                        return Concat("rank ", rank, " is odd");
                                    }
                                    return std::string();
                                  },
                                  [this] {
                                    if (!no_invitation.empty())
                                      Throw(ErrorKind::kUnavailable, no_invitation);
                                    Invitation invitation = {};
                                    invitation.front() = invitation.back() = id;
                                    return invitation;
                                  }};
};

class Agreement : public testing::Test {
 protected:
  /// The ranks' statements on each option, by rank; initially all want and have them all.
  using Statements = std::vector<std::vector<Statement>>;

  static Statements Able(int size) {
    return Statements(static_cast<std::size_t>(size),
                      std::vector<Statement>(2, {Wish::kIfPossible, "", "", false, "even"}));
  }

  /// The outcome on all ranks; the test fails if ranks differ.
  struct Outcome {
    DeviceAgreement agreed;
    std::string thrown;
    ErrorKind kind = {};
  };

  Outcome AgreeOnAll(const Statements& statements) {
    std::vector<Outcome> outcome(statements.size());
    OnRanks(static_cast<int>(statements.size()), [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.Rank());
      try {
        outcome[rank].agreed =
            AgreeOnGpuTransport(&comm, {&first_.option, &second_.option}, statements[rank]);
      } catch (const Error& error) {
        outcome[rank].thrown = error.what();
        outcome[rank].kind = error.kind();
      }
    });
    for (const Outcome& one : outcome) {
      EXPECT_EQ(one.agreed.option, outcome[0].agreed.option);
      EXPECT_EQ(one.agreed.unmet, outcome[0].agreed.unmet);
      EXPECT_EQ(one.agreed.why, outcome[0].agreed.why);
      EXPECT_EQ(one.agreed.invitation, outcome[0].agreed.invitation);
      EXPECT_EQ(one.thrown, outcome[0].thrown);
      EXPECT_EQ(one.kind, outcome[0].kind);
    }
    return outcome[0];
  }

  FakeOption first_{"the first", '1'}, second_{"the second", '2'};
};

TEST_F(Agreement, TheFirstOptionThatAllWantAndHaveIsTaken) {
  for (const int size : {1, 2, 3, 5}) {
    const Outcome outcome = AgreeOnAll(Able(size));
    EXPECT_EQ(outcome.thrown, "");
    EXPECT_EQ(outcome.agreed.option, &first_.option);
    EXPECT_EQ(outcome.agreed.unmet, "");
    EXPECT_EQ(outcome.agreed.invitation.back(), '1');
  }
}

TEST_F(Agreement, OneRankWithoutThemKeepsAllFromItAndTheNextOnesAreTaken) {
  Statements statements = Able(4);
  statements[2][0].problem = "it cannot be loaded";
  const Outcome outcome = AgreeOnAll(statements);
  EXPECT_EQ(outcome.agreed.option, &second_.option);
  EXPECT_EQ(outcome.agreed.invitation.front(), '2');
  EXPECT_EQ(outcome.agreed.unmet,
            "the first is not used: rank 2: it cannot be loaded (with HVD_SPARSE_TEST_OPTION=0 no "
            "rank tries it)");
}

TEST_F(Agreement, WhereNothingCanBeUsedAllReasonsAreTold) {
  Statements statements = Able(3);
  statements[0][0].description = statements[1][0].description = "odd";
  statements[1][1].problem = "it has none";
  const Outcome outcome = AgreeOnAll(statements);
  EXPECT_EQ(outcome.agreed.option, nullptr);
  EXPECT_EQ(outcome.agreed.unmet,
            "the first is not used: rank 1 is odd (with HVD_SPARSE_TEST_OPTION=0 no rank tries "
            "it); the second is not "
            "used: rank 1: it has none (with HVD_SPARSE_TEST_OPTION=0 no rank tries it)");
}

TEST_F(Agreement, WhatIsLessPreferredIsMissedByNobody) {
  Statements statements = Able(2);
  statements[1][1].problem = "it has none";
  EXPECT_EQ(AgreeOnAll(statements).agreed.unmet, "");
}

TEST_F(Agreement, ARankThatDoesNotWantThemKeepsAllFromItAndNobodyIsTold) {
  Statements statements = Able(3);
  for (Statement& statement : statements[1]) {
    statement.wish = Wish::kNever;
    statement.problem = "not wanted";
  }
  const Outcome outcome = AgreeOnAll(statements);
  EXPECT_EQ(outcome.agreed.option, nullptr);
  EXPECT_EQ(outcome.agreed.unmet, "");
  EXPECT_EQ(
      outcome.agreed.why,
      "the first is not used: rank 1: not wanted; the second is not used: rank 1: not wanted");
}

TEST_F(Agreement, ARankThatInsistsEndsAllWithTheReason) {
  for (const std::size_t option : {0, 1}) {
    Statements statements = Able(3);
    statements[0][option].wish = Wish::kAlways;
    EXPECT_EQ(AgreeOnAll(statements).thrown, "");
    statements[2][option].problem = "no device";
    const Outcome outcome = AgreeOnAll(statements);
    EXPECT_EQ(outcome.kind, ErrorKind::kUnavailable);
    EXPECT_EQ(outcome.thrown,
              Concat("HVD_SPARSE_TEST_OPTION=1 asks for the ", option == 0 ? "first" : "second",
                     ", which cannot be used: rank 2: no device"));
  }
}

TEST_F(Agreement, AnOptionThatRankZeroCannotInviteToIsNotUsed) {
  first_.no_invitation = "out of order";
  const Outcome outcome = AgreeOnAll(Able(2));
  EXPECT_EQ(outcome.agreed.option, &second_.option);
  EXPECT_EQ(outcome.agreed.unmet,
            "the first is not used: rank 0: out of order (with HVD_SPARSE_TEST_OPTION=0 no rank "
            "tries it)");
}

TEST_F(Agreement, AReasonOfAnyLengthTravels) {
  Statements statements = Able(2);
  statements[1][0].problem = std::string(100'000, 'x');
  const std::string unmet = AgreeOnAll(statements).agreed.unmet;
  EXPECT_NE(unmet.find("rank 1: xxx"), std::string::npos);
  EXPECT_GT(unmet.size(), 1000u);
}

TEST_F(Agreement, AMistakenWishIsToldToAllRanks) {
  Statements statements = Able(3);
  statements[1][1].error = "the variable must be something else";
  const Outcome outcome = AgreeOnAll(statements);
  EXPECT_EQ(outcome.kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(outcome.thrown, "rank 1: the variable must be something else");
}

TEST_F(Agreement, AStatementFollowsTheEnvironmentAndAsksOnlyWhereThatAsks) {
  const auto own = [&] { return StatementOf(first_.option, "its memory is full", 3); };
  first_.problem = "there is none here";
  ::unsetenv(kVariable);
  for (const char* value : {"", "0"}) {
    const Statement statement = own();
    EXPECT_EQ(statement.wish, Wish::kNever);
    EXPECT_EQ(statement.problem, "HVD_SPARSE_TEST_OPTION is neither auto nor 1") << value;
    ::setenv(kVariable, "0", 1);
  }
  ::setenv(kVariable, "auto", 1);
  EXPECT_EQ(own().wish, Wish::kIfPossible);
  EXPECT_EQ(own().problem, "there is none here");
  first_.problem = "";
  EXPECT_EQ(own().problem, "");
  EXPECT_EQ(own().description, "device 3, its memory is full");
  ::setenv(kVariable, "1", 1);
  EXPECT_EQ(own().wish, Wish::kAlways);
  ::setenv(kVariable, "yes", 1);
  EXPECT_EQ(own().error, "HVD_SPARSE_TEST_OPTION must be 0, auto, 1 or unset, got 'yes'");
  ::unsetenv(kVariable);
}

TEST_F(Agreement, AnotherVersionOfThisPackageIsFoundOut) {
  std::vector<Error> errors(2, Error(ErrorKind::kInvalidArgument, ""));
  OnRanks(2, [&](Communicator& comm) {
    if (comm.Rank() == 0) {
      errors[0] = Thrown(
          [&] { AgreeOnGpuTransport(&comm, {&first_.option, &second_.option}, Able(2)[0]); });
      comm.Fail(errors[0].kind(), errors[0].what());
      return;
    }
    const char byte = 1;
    const std::vector<Outgoing> out{{0, &byte, 1}};
    comm.Transfer(out, {}, "something else");
  });
  EXPECT_EQ(errors[0].kind(), ErrorKind::kDisagreement);
  EXPECT_TRUE(Says(errors[0], "rank 1 sent 1 bytes for the agreement on what connects GPUs"));
}

}  // namespace
}  // namespace hvd_sparse
