#include "csrc/cuda/nccl_agreement.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/cuda/check.h"

namespace hvd_sparse::nccl {
namespace {

constexpr const char* kVariable = "HVD_SPARSE_NCCL";
constexpr const char* kWhat = "the agreement on NCCL";
constexpr std::size_t kText = 2000;  // bytes of a reason that travel

/// Means, as a message between equal machines.
struct MeansMessage {
  Wish wish;
  int version;
  bool may_share;
  char device[400], error[400], problem[kText];
};

/// What rank 0 tells the others.
struct Decision {
  bool throws, declined;
  ErrorKind kind;
  char problem[kText];
  UniqueId id;
};

template <std::size_t size>
void Put(const std::string& text, char (&into)[size]) {
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(into, text.data(), length);
  into[length] = '\0';
}

/// Of a message that came from elsewhere.
template <std::size_t size>
std::string TextOf(const char (&text)[size]) {
  return {text, ::strnlen(text, size)};
}

MeansMessage MessageOf(const Means& means) {
  MeansMessage message = {};
  message.wish = means.wish;
  message.version = means.version;
  message.may_share = means.may_share;
  Put(means.device, message.device);
  Put(means.error, message.error);
  Put(means.problem, message.problem);
  return message;
}

Means Read(const MeansMessage& message) {
  return {message.wish,    TextOf(message.error),  TextOf(message.problem),
          message.version, TextOf(message.device), message.may_share};
}

Wish WishFromEnvironment() {
  const char* value = std::getenv(kVariable);
  const std::string text = value == nullptr ? "" : value;
  if (text.empty() || text == "0") return Wish::kNever;
  Require(text == "auto" || text == "1", kVariable, " must be 0, auto, 1 or unset, got '", text,
          "'");
  return text == "1" ? Wish::kAlways : Wish::kIfPossible;
}

/// Host and UUID: what NCCL, too, goes by.
std::string NameOf(int device) {
  cudaDeviceProp properties;
  cuda::Check(cudaGetDeviceProperties(&properties, device), "ask for a device's UUID");
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  std::string name = Concat("GPU ", device, " of ", host, ", UUID ");
  for (const char byte : properties.uuid.bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto value = static_cast<unsigned char>(byte);
    name += {kDigits[value / 16], kDigits[value % 16]};
  }
  return name;
}

/// The part that tells devices apart: ranks may number one device differently.
std::string IdentityOf(const std::string& name) {
  const auto host = name.find(" of ");
  return host == std::string::npos ? name : name.substr(host);
}

/// Of fixed lengths, which another version of this package may not have.
void Receive(Communicator* comm, Span<Incoming> in) {
  comm->Transfer({}, in, kWhat);
  for (const Incoming& message : in) {
    if (message.bytes == message.capacity) continue;
    Throw(ErrorKind::kDisagreement, "rank ", message.peer, " sent ", message.bytes, " bytes for ",
          kWhat, ", expected are ", message.capacity, ": it runs another version of hvd_sparse");
  }
}

Decision Decide(const std::vector<Means>& ranks) {
  Decision decision = {};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].error.empty()) continue;
    decision.throws = true;
    decision.kind = ErrorKind::kInvalidArgument;
    Put(Concat("rank ", rank, ": ", ranks[rank].error), decision.problem);
    return decision;
  }
  std::string problem = WhyNot(ranks);
  if (problem.empty()) {
    try {
      const Library& library = Library::Get();
      const Result result = library.calls().GetUniqueId(&decision.id);
      if (result != kSuccess) problem = library.Problem(result, "ncclGetUniqueId", nullptr);
    } catch (const Error& error) {
      problem = error.what();
    }
    if (!problem.empty()) problem = Concat("rank 0: ", problem);
  }
  const auto some_wish = [&](Wish wish) {
    const auto is = [wish](const Means& one) { return one.wish == wish; };
    return std::any_of(ranks.begin(), ranks.end(), is);
  };
  decision.declined = some_wish(Wish::kNever);
  if (!problem.empty() && some_wish(Wish::kAlways)) {
    decision.throws = true;
    decision.kind = ErrorKind::kUnavailable;
    problem = Concat(kVariable, "=1 asks for NCCL, which cannot be used: ", problem);
  }
  Put(problem, decision.problem);
  return decision;
}

}  // namespace

Means MeansOf(int device) {
  Means means;
  try {
    means.wish = WishFromEnvironment();
  } catch (const Error& error) {
    means.error = error.what();
    return means;
  }
  if (means.wish == Wish::kNever) {
    means.problem = Concat(kVariable, " is neither auto nor 1");
    return means;
  }
  try {
    means.device = NameOf(device);
    means.version = Library::Get().version();
  } catch (const Error& error) {
    means.problem = error.what();
  }
  const char* sharing = std::getenv(kSharing);
  means.may_share = sharing != nullptr && std::strcmp(sharing, "1") == 0;
  return means;
}

std::string WhyNot(const std::vector<Means>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].problem.empty()) return Concat("rank ", rank, ": ", ranks[rank].problem);
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].version == ranks[0].version) continue;
    return Concat("rank ", rank, " has NCCL ", VersionName(ranks[rank].version), " and rank 0 ",
                  VersionName(ranks[0].version), ": give all ranks the same");
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (IdentityOf(ranks[rank].device) != IdentityOf(ranks[other].device)) continue;
      const std::string shared =
          Concat("ranks ", other, " and ", rank, " share a device (", ranks[rank].device, ")");
      if (ranks[0].version < kSharingVersion) {
        return Concat(shared, ", for which NCCL ", VersionName(kSharingVersion),
                      " is needed, with ", kSharing, "=1; there is ",
                      VersionName(ranks[0].version));
      }
      for (const std::size_t one : {other, rank}) {
        if (!ranks[one].may_share) {
          return Concat(shared, ": set ", kSharing, "=1, or give each rank a device of its own");
        }
      }
    }
  }
  return "";
}

Agreement Agree(Communicator* comm, const Means& own) {
  Decision decision = {};
  if (comm->Rank() == 0) {
    std::vector<MeansMessage> messages(static_cast<std::size_t>(comm->Size()));
    messages[0] = MessageOf(own);
    std::vector<Incoming> in;
    for (int rank = 1; rank < comm->Size(); ++rank) {
      in.push_back({rank, &messages[static_cast<std::size_t>(rank)], sizeof(MeansMessage)});
    }
    Receive(comm, in);
    std::vector<Means> ranks;
    for (const MeansMessage& message : messages) ranks.push_back(Read(message));
    decision = Decide(ranks);
    std::vector<Outgoing> out;
    for (int rank = 1; rank < comm->Size(); ++rank) {
      out.push_back({rank, &decision, sizeof(decision)});
    }
    comm->Transfer(out, {}, kWhat);
  } else {
    const MeansMessage message = MessageOf(own);
    const std::vector<Outgoing> out{{0, &message, sizeof(message)}};
    comm->Transfer(out, {}, kWhat);
    std::vector<Incoming> in{{0, &decision, sizeof(decision)}};
    Receive(comm, in);
  }
  if (decision.throws) Throw(decision.kind, TextOf(decision.problem));
  return {TextOf(decision.problem), decision.declined, decision.id};
}

}  // namespace hvd_sparse::nccl
