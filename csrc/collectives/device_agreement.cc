#include "csrc/collectives/device_agreement.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace hvd_sparse {
namespace {

constexpr const char* kWhat = "the agreement on what connects GPUs";
constexpr std::size_t kText = 2000;  // bytes of a reason in a message
constexpr int kNone = -1;

/// A Statement in the form of a message between equal machines.
struct StatementMessage {
  Wish wish;
  bool timed_out;
  char error[400], problem[kText], description[400];
};

/// The message that rank 0 sends to the others.
struct Decision {
  bool throws = false;
  ErrorKind kind = {};
  int chosen = kNone;  // index in the table
  char text[kText] = "", why[kText] = "";
  Invitation invitation = {};
};

template <std::size_t size>
void Put(const std::string& text, char (&into)[size]) {
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(into, text.data(), length);
  into[length] = '\0';
}

/// Returns a text of a received message, which may lack the terminating zero.
template <std::size_t size>
std::string TextOf(const char (&text)[size]) {
  return {text, ::strnlen(text, size)};
}

StatementMessage MessageOf(const Statement& statement) {
  StatementMessage message = {};
  message.wish = statement.wish;
  message.timed_out = statement.timed_out;
  Put(statement.error, message.error);
  Put(statement.problem, message.problem);
  Put(statement.description, message.description);
  return message;
}

Statement Read(const StatementMessage& message) {
  return {message.wish, TextOf(message.error), TextOf(message.problem), message.timed_out,
          TextOf(message.description)};
}

Wish WishFor(const GpuTransportOption& option) {
  const char* value = std::getenv(option.variable.c_str());
  const std::string text = value == nullptr ? "" : value;
  if (text.empty()) return option.is_default ? Wish::kByDefault : Wish::kNever;
  if (text == "0") return Wish::kNever;
  Require(text == "auto" || text == "1", option.variable, " must be 0, auto, 1 or unset, got '",
          text, "'");
  return text == "1" ? Wish::kAlways : Wish::kIfPossible;
}

void Append(const std::string& reason, std::string* reasons) {
  *reasons += Concat(reasons->empty() ? "" : "; ", reason);
}

/// Receives messages of fixed length. Throws Disagreement for any other length: its sender runs
/// another version of this package.
void Receive(Communicator* comm, Span<Incoming> in) {
  comm->Transfer({}, in, kWhat);
  for (const Incoming& message : in) {
    if (message.bytes == message.capacity) continue;
    Throw(ErrorKind::kDisagreement, "rank ", message.peer, " sent ", message.bytes, " bytes for ",
          kWhat, ", expected are ", message.capacity, ": it runs another version of hvd_sparse");
  }
}

/// Returns why ranks with these statements do not use the option; empty if they can.
std::string WhyNot(const GpuTransportOption& option, const std::vector<Statement>& ranks) {
  for (const bool timed_out : {false, true}) {  // who waited knows less
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const Statement& one = ranks[rank];
      if (one.problem.empty() || one.timed_out != timed_out) continue;
      return Concat("rank ", rank, ": ", one.problem);
    }
  }
  std::vector<std::string> descriptions;
  for (const Statement& one : ranks) descriptions.push_back(one.description);
  return option.why_not(descriptions);
}

Decision Refusal(ErrorKind kind, const std::string& text) {
  Decision decision;
  decision.throws = true;
  decision.kind = kind;
  Put(text, decision.text);
  return decision;
}

/// Decides for all ranks. `said`: for each option, the statements of all ranks, in rank order.
Decision Decide(const GpuTransportOptions& table, const std::vector<std::vector<Statement>>& said) {
  for (const auto& ranks : said) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].error.empty()) continue;
      return Refusal(ErrorKind::kInvalidArgument, Concat("rank ", rank, ": ", ranks[rank].error));
    }
  }
  Decision decision;
  std::string unmet, why;
  for (std::size_t m = 0; m < table.size(); ++m) {
    const GpuTransportOption& option = *table[m];
    const bool is_wanted = decision.chosen == kNone;  // else a preferred one is chosen
    std::string problem = WhyNot(option, said[m]);
    if (problem.empty() && is_wanted) {
      try {
        decision.invitation = option.invite();
        decision.chosen = static_cast<int>(m);
      } catch (const Error& error) {
        problem = Concat("rank 0: ", error.what());
      }
    }
    if (problem.empty()) continue;
    const auto some_wish = [&](Wish wish) {
      const auto is = [wish](const Statement& one) { return one.wish == wish; };
      return std::any_of(said[m].begin(), said[m].end(), is);
    };
    if (some_wish(Wish::kAlways)) {
      return Refusal(ErrorKind::kUnavailable, RequiredButUnavailable(option, problem));
    }
    if (!is_wanted) continue;
    const std::string reason = Concat(option.name, " is not used: ", problem);
    Append(reason, &why);
    if (some_wish(Wish::kNever) || some_wish(Wish::kByDefault)) continue;  // needs no warning
    Append(Concat(reason, " (with ", option.variable, "=0 no rank tries it)"), &unmet);
  }
  Put(unmet, decision.text);
  Put(why, decision.why);
  return decision;
}

/// On rank 0: receives all statements, decides, and sends the decision.
Decision DecideForAll(Communicator* comm, const GpuTransportOptions& table,
                      const std::vector<StatementMessage>& own) {
  const auto size = static_cast<std::size_t>(comm->Size());
  std::vector<std::vector<StatementMessage>> messages(size, own);
  const auto bytes = static_cast<std::int64_t>(own.size() * sizeof(StatementMessage));
  std::vector<Incoming> in;
  for (int rank = 1; rank < comm->Size(); ++rank) {
    in.push_back({rank, messages[static_cast<std::size_t>(rank)].data(), bytes});
  }
  Receive(comm, in);
  std::vector<std::vector<Statement>> said(table.size());
  for (std::size_t m = 0; m < table.size(); ++m) {
    for (const auto& of_rank : messages) said[m].push_back(Read(of_rank[m]));
  }
  const Decision decision = Decide(table, said);
  std::vector<Outgoing> out;
  for (int rank = 1; rank < comm->Size(); ++rank) {
    out.push_back({rank, &decision, sizeof(decision)});
  }
  comm->Transfer(out, {}, kWhat);
  return decision;
}

/// On the other ranks: sends the statements to rank 0 and receives its decision.
Decision HearFromRankZero(Communicator* comm, const std::vector<StatementMessage>& own) {
  const auto bytes = static_cast<std::int64_t>(own.size() * sizeof(StatementMessage));
  const std::vector<Outgoing> out{{0, own.data(), bytes}};
  comm->Transfer(out, {}, kWhat);
  Decision decision;
  std::vector<Incoming> in{{0, &decision, sizeof(decision)}};
  Receive(comm, in);
  return decision;
}

}  // namespace

Statement StatementOf(const GpuTransportOption& option, const std::string& memory_problem,
                      int device) {
  Statement statement;
  try {
    statement.wish = WishFor(option);
  } catch (const Error& error) {
    statement.error = error.what();
    return statement;
  }
  if (statement.wish == Wish::kNever) {
    statement.problem =
        Concat(option.variable, option.is_default ? " is 0" : " is neither auto nor 1");
    return statement;
  }
  try {
    statement.description = option.describe(memory_problem, device);
  } catch (const Error& error) {
    statement.problem = error.what();
  }
  return statement;
}

std::string RequiredButUnavailable(const GpuTransportOption& option, const std::string& problem) {
  return Concat(option.variable, "=1 asks for ", option.name, ", which cannot be used: ", problem);
}

DeviceAgreement AgreeOnGpuTransport(Communicator* comm, const GpuTransportOptions& table,
                                    const std::vector<Statement>& own) {
  std::vector<StatementMessage> messages;
  for (const Statement& statement : own) messages.push_back(MessageOf(statement));
  const Decision decision =
      comm->Rank() == 0 ? DecideForAll(comm, table, messages) : HearFromRankZero(comm, messages);
  if (decision.throws) Throw(decision.kind, TextOf(decision.text));
  DeviceAgreement agreement;
  if (decision.chosen != kNone) agreement.option = table[static_cast<std::size_t>(decision.chosen)];
  agreement.unmet = TextOf(decision.text);
  agreement.why = TextOf(decision.why);
  agreement.invitation = decision.invitation;
  return agreement;
}

DeviceAgreement AgreeOnTrial(Communicator* comm, DeviceAgreement agreed, Statement own,
                             const std::optional<Error>& problem) {
  const GpuTransportOption& option = *agreed.option;
  const GpuTransportOption tried{option.name, option.variable, option.is_default, nullptr};
  if (problem) {
    own.problem = problem->what();
    own.timed_out = problem->kind() == ErrorKind::kTimeout;
  }
  own.wish = std::max(own.wish, Wish::kIfPossible);  // so that a failed trial gives a warning
  const DeviceAgreement outcome = AgreeOnGpuTransport(comm, {&tried}, {own});
  if (outcome.option != nullptr) return agreed;
  agreed.option = nullptr;
  Append(outcome.why, &agreed.why);
  Append(outcome.unmet, &agreed.unmet);
  return agreed;
}

}  // namespace hvd_sparse
