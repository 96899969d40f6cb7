#include "kernels/linear/cuda/autotune.h"

#include <unistd.h>

#include <bit>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <optional>
#include <sstream>
#include <utility>

namespace decoding {
extern const char* const kSourcesHash;  // written by setup.py
}

namespace decoding::cuda {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path cache_folder() {
  if (const auto chosen = environment("DECODING_CACHE"); !chosen.empty()) return chosen;
  if (const auto caches = environment("XDG_CACHE_HOME"); !caches.empty()) {
    return fs::path(caches) / "decoding";
  }
  if (const auto home = environment("HOME"); !home.empty()) {
    return fs::path(home) / ".cache" / "decoding";
  }
  return {};
}

std::string cache_file(const Device& device, size_t cublaslt_version) {
  const fs::path folder = cache_folder();
  if (folder.empty()) return {};
  std::ostringstream name;
  for (const char* c = device.name; *c != 0; ++c) {
    name << (std::isalnum(static_cast<unsigned char>(*c)) ? *c : '-');
  }
  name << "-cublaslt-" << cublaslt_version << '-' << std::string(kSourcesHash, 16) << ".txt";
  return folder / name.str();
}

// FNV-1a: tells a line that was written whole from any other.
std::string checksum(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211u;
  std::ostringstream out;
  out << std::hex << hash;
  return out.str();
}

std::string line_of(const ProductKey& key, const Tuned& tuned) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << key.type << ' ' << static_cast<int>(key.weight) << ' ' << key.inputs << ' ' << key.outputs
      << ' ' << static_cast<int>(key.activation) << ' ' << key.norm << ' ' << key.bias << ' '
      << key.residual << ' ' << key.gated << ' ' << key.whole << ' ' << key.deterministic << ' '
      << key.stride << ' ' << key.rows << ' ' << tuned.time << ' ' << tuned.cublaslt_default << ' '
      << tuned.cublaslt_best << ' ' << tuned.own_best << ' ' << tuned.algorithm.variant << ' '
      << tuned.algorithm.separate_norm << ' ' << tuned.algorithm.separate_gate;
  for (uint64_t word : tuned.algorithm.cublaslt.words) out << ' ' << word;
  return out.str() + ' ' + checksum(out.str());
}

std::optional<std::pair<ProductKey, Tuned>> parse(const std::string& line) {
  const size_t end = line.rfind(' ');
  if (end == std::string::npos || line.substr(end + 1) != checksum(line.substr(0, end))) return {};
  std::istringstream in(line);
  in.imbue(std::locale::classic());
  ProductKey key{};
  Tuned tuned;
  int type = 0, weight = 0, activation = 0;
  in >> type >> weight >> key.inputs >> key.outputs >> activation >> key.norm >> key.bias >>
      key.residual >> key.gated >> key.whole >> key.deterministic >> key.stride >> key.rows >>
      tuned.time >> tuned.cublaslt_default >> tuned.cublaslt_best >> tuned.own_best >>
      tuned.algorithm.variant >> tuned.algorithm.separate_norm >> tuned.algorithm.separate_gate;
  for (uint64_t& word : tuned.algorithm.cublaslt.words) in >> word;
  if (!in) return {};
  key.type = static_cast<cudaDataType_t>(type);
  key.weight = static_cast<WeightKind>(weight);
  key.activation = static_cast<Activation>(activation);
  return {{key, tuned}};
}

// Of x, and of a quantized weight too.
std::string name_of(const ProductKey& key) {
  if (is_quantized(key.weight)) {
    const std::string weight = key.weight == WeightKind::int8 ? "int8" : "e4m3";
    return weight + (key.type == CUDA_R_16F ? " f16" : " bf16");
  }
  return key.type == CUDA_R_32F ? "float32" : key.type == CUDA_R_16F ? "float16" : "bfloat16";
}

const char* name_of(Activation activation) {
  constexpr const char* kNames[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};
  return kNames[static_cast<int>(activation)];
}

double bytes_of(const ProductKey& key) {
  const double columns = (1.0 + key.residual) * key.outputs / (key.gated ? 2 : 1);
  const double width = key.type == CUDA_R_32F ? 4 : 2;
  return double(key.inputs) * key.outputs * (is_quantized(key.weight) ? 1 : width) +
         key.rows * (key.inputs + columns) * width;
}

}  // namespace

int rows_bucket(int rows) {
  const unsigned power = std::bit_ceil(static_cast<unsigned>(rows));
  return static_cast<int>(power > 2 && power / 4 * 3 >= static_cast<unsigned>(rows) ? power / 4 * 3
                                                                                    : power);
}

Tuning::Tuning(const Device& device, size_t cublaslt_version)
    : file_(cache_file(device, cublaslt_version)), enabled_(environment("DECODING_TUNE") != "0") {
  if (enabled_) known_ = read(file_);
}

const Tuned* Tuning::find(const ProductKey& key) const {
  const auto at = known_.find(key);
  return at == known_.end() ? nullptr : &at->second;
}

const Tuned* Tuning::nearest(const ProductKey& key) const {
  for (auto at = known_.lower_bound(key); at != known_.end(); ++at) {  // rows are compared last
    ProductKey found = at->first;
    found.rows = key.rows;
    if (found != key) break;
    if (at->first == key || at->second.time > 0) return &at->second;
  }
  return nullptr;
}

void Tuning::remember(const ProductKey& key, const Tuned& tuned, std::vector<Timed> candidates) {
  known_.insert_or_assign(key, tuned);
  if (candidates.size() > 1) candidates_.insert_or_assign(key, std::move(candidates));
  if (tuned.time > 0) save();
}

std::map<ProductKey, std::vector<Timed>> Tuning::take_candidates() {
  std::map<ProductKey, std::vector<Timed>> taken;
  for (const ProductKey& key : visited_) taken.insert(candidates_.extract(key));
  return taken;
}

void Tuning::use(const ProductKey& key, const Timed& candidate) {
  Tuned& tuned = known_.at(key);
  tuned.algorithm = candidate.algorithm;
  tuned.time = candidate.time;
}

Tuning::Table Tuning::read(const std::string& file) {
  Table table;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (const auto entry = parse(line)) table.insert(*entry);
  }
  return table;
}

// Other processes write it too: what they found meanwhile is kept, and a reader never sees half.
void Tuning::save() const {
  if (file_.empty()) return;
  std::error_code ignored;
  fs::create_directories(fs::path(file_).parent_path(), ignored);
  Table all = read(file_);
  for (const auto& [key, tuned] : known_) {
    if (tuned.time > 0) all.insert_or_assign(key, tuned);
  }
  std::ostringstream mine;
  mine << file_ << '.' << getpid() << '.' << this;
  std::ofstream out(mine.str());
  for (const auto& [key, tuned] : all) out << line_of(key, tuned) << '\n';
  out.close();
  if (out) {
    fs::rename(mine.str(), file_, ignored);
  } else {
    fs::remove(mine.str(), ignored);
  }
}

std::string Tuning::report() const {
  std::ostringstream out;
  out << "type      rows      K       N  activation  with                           chosen       us"
         "  cuBLASLt: first, best      own   GB/s\n";
  out << std::fixed;
  for (const auto& [key, tuned] : known_) {
    if (tuned.time == 0) continue;
    const std::string with = std::string(key.norm ? "norm " : "") + (key.bias ? "bias " : "") +
                             (key.residual ? "residual" : "") + (key.gated ? "gate" : "");
    const int variant = tuned.algorithm.variant;
    const std::string own = (tuned.algorithm.separate_norm ? "norm, own " : "own ") +
                            std::to_string(variant) +
                            (tuned.algorithm.separate_gate ? ", gate" : "");
    out << std::left << std::setw(9) << name_of(key) << std::right << std::setw(5) << key.rows
        << std::setw(7) << key.inputs << std::setw(8) << key.outputs << "  " << std::left
        << std::setw(12) << name_of(key.activation) << std::setw(19) << with << std::right
        << std::setw(18) << (variant < 0 ? "cuBLASLt" : own) << std::setprecision(2) << std::setw(9)
        << tuned.time << std::setw(17) << tuned.cublaslt_default << std::setw(8)
        << tuned.cublaslt_best << std::setw(9) << tuned.own_best << std::setprecision(0)
        << std::setw(7) << bytes_of(key) / tuned.time * 1e-3 << '\n';
  }
  return out.str();
}

}  // namespace decoding::cuda
