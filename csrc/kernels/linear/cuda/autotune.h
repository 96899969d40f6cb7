// The fastest algorithm of each product, as timing.h measures it, and of a step's products as
// tune_in_place.h does: in memory, and in a file per GPU, version of cuBLASLt and build of ours.
//
// The file lies in $DECODING_CACHE, else in `decoding` in $XDG_CACHE_HOME or ~/.cache. It is a
// convenience: lines that are damaged are ignored, and so is a folder that cannot be written.
// DECODING_TUNE=0 turns tuning off.
#pragma once

#include <compare>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/types.h"
#include "kernels/cuda/stream.h"
#include "kernels/linear/cuda/cublaslt/cublaslt.h"

namespace decoding::cuda {

// The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that is not below `rows`: counts in between share what
// was found for one of them.
int rows_bucket(int rows);

// All that the time of a product depends on.
struct ProductKey {
  cudaDataType_t type;
  WeightKind weight;
  int inputs, outputs;
  Activation activation;
  bool norm, bias, residual, gated;
  bool whole;  // whether cuBLASLt does all that follows the product, for it needs other code then
  bool deterministic;  // only algorithms that add up in one order
  int stride;          // of the rows of y
  int rows;            // a bucket

  auto operator<=>(const ProductKey&) const = default;
};

// One way to compute a product.
struct Algorithm {
  int variant = -1;            // of gemm.h; -1: cuBLASLt with `cublaslt`, in 16 bits
  bool separate_norm = false;  // a kernel before the product; with cuBLASLt always
  bool separate_gate = false;  // a kernel after the product, likewise
  cublaslt::Algorithm cublaslt = {};
};

// An algorithm, and microseconds of the product alone.
struct Timed {
  Algorithm algorithm;
  float time;
};

// The algorithm to use, and microseconds; 0 where nothing was timed.
struct Tuned {
  Algorithm algorithm = {};
  float time = 0;
  float cublaslt_default = 0, cublaslt_best = 0, own_best = 0;
};

class Tuning {
 public:
  // cublaslt_version: as the library tells it.
  Tuning(const Device& device, size_t cublaslt_version);

  // False: products are not timed.
  bool enabled() const { return enabled_; }
  // Null for nothing.
  const Tuned* find(const ProductKey& key) const;
  // What is known of it, else what was timed for as few more rows as possible; null for nothing.
  const Tuned* nearest(const ProductKey& key) const;
  // In the file as well, where it was timed. candidates: what may be the fastest in a step.
  void remember(const ProductKey& key, const Tuned& tuned, std::vector<Timed> candidates = {});

  // A pass through the model begins, and comes to its products.
  void begin_pass() { visited_.clear(); }
  void visit(const ProductKey& key) { visited_.insert(key); }
  // Of the products of the pass; none of what was timed before this process, or taken already.
  std::map<ProductKey, std::vector<Timed>> take_candidates();
  // In memory alone, of a product that was timed.
  void use(const ProductKey& key, const Timed& candidate);

  // All of it.
  const std::map<ProductKey, Tuned>& known() const { return known_; }
  // To the file.
  void save() const;
  // A line for each product that was timed.
  std::string report() const;

 private:
  using Table = std::map<ProductKey, Tuned>;
  static Table read(const std::string& file);

  Table known_;
  std::map<ProductKey, std::vector<Timed>> candidates_;
  std::set<ProductKey> visited_;
  std::string file_;  // empty where there is no folder for it
  bool enabled_;
};

}  // namespace decoding::cuda
