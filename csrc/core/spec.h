// A model as plain numbers: an architecture as the engine sees it. Filled from
// models/spec.py, whose fields have the same names.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "core/types.h"

namespace decoding {

// Rotary positions (Su et al. 2021), see kernels/attention/rotary.h.
struct RotarySpec {
  int size;          // elements of a head that are rotated, from its first on
  bool interleaved;  // pairs are neighbours; else i and i + size / 2
  float factor;      // multiplies sine and cosine
  int tables;        // of frequencies, for rows of different lengths
  int original;      // the longest row that has the first of them
};

// How attention scores depend on the distance of key and query: AttentionBias in
// kernels/attention/bias.h.
enum class PositionBias { none, alibi, relative };

// Depthwise convolution in the place of self-attention, see kernels/conv/depthwise.h.
struct ConvolutionSpec {
  std::vector<int> kernel_sizes;  // [layers], tokens that a token sees
  bool dynamic;                   // each token computes its kernel; else it is a weight
  bool gated;                     // the kernel is applied to sigmoid(gate x) * input x

  int widest_kernel() const { return *std::max_element(kernel_sizes.begin(), kernel_sizes.end()); }
};

// One stack of Transformer layers: the encoder or the decoder.
struct StackSpec {
  int layers, hidden, head_dim;
  std::vector<int> heads, kv_heads;  // [layers], of queries; of keys and values, divisors of heads
  std::vector<int> ffn;              // [layers]
  int vocab;                         // rows of the token table
  int positions;  // most tokens of a row; rows of the position table, where there is one
  Activation activation;
  float embed_scale;                   // multiplies the token's row
  bool embed_norm;                     // a norm after the embedding
  bool pre_norm;                       // norms before each block, else after its residual
  bool final_norm;                     // a norm after the last layer
  float eps;                           // of every norm
  std::vector<float> attention_scale;  // [layers], multiplies q k^T
  int types;                           // of tokens; the position table has `positions` rows of each
  bool rms;                            // norms are RMS norms
  bool gated;                          // feed-forward: activation(gate x) * up x
  bool parallel;                       // feed-forward reads what attention reads
  bool shared_norm;                    // with parallel: through attention's norm
  bool post_norm;                      // norms after each block too, before its residual is added
  bool head_norm;                      // RMS norms of each head's queries and keys
  std::optional<RotarySpec> rotary;
  PositionBias position_bias;
  bool bias_by_layer;       // relative: each layer has a table of its own
  int reach;                // relative: distances that the table tells apart, in each direction
  float attention_cap;      // 0: none; else scores are cap * tanh(score / cap)
  std::vector<int> window;  // [layers], keys that a query sees; 0: all. Empty: all, in every layer
  std::optional<ConvolutionSpec> convolution;  // none: self-attention
  bool int8_activations;  // on a GPU products of many packed rows round what they read, too (W8A8)
  // Of a model that is split over ranks: heads and ffn are those of this one, and so are the tokens
  // whose rows the token table and the output projection have. Of a whole one: all of the vocab.
  int first_token = 0, tokens = vocab;

  // Numbers of a token in layer i: its queries, its keys, and both with its values.
  int inner(int i) const { return heads[i] * head_dim; }
  int kv_inner(int i) const { return kv_heads[i] * head_dim; }
  int qkv(int i) const { return inner(i) + 2 * kv_inner(i); }

  // Numbers of a token's keys in the layers before layer i.
  int64_t kv_before(int i) const {
    return std::accumulate(kv_heads.begin(), kv_heads.begin() + i, int64_t{0}) * head_dim;
  }

  // At least those of any layer.
  int widest_inner() const { return most(heads) * head_dim; }
  int widest_kv_inner() const { return most(kv_heads) * head_dim; }
  int widest_qkv() const { return widest_inner() + 2 * widest_kv_inner(); }
  int widest_ffn() const { return most(ffn); }
  int widest_conv_scores() const { return most(heads) * convolution->widest_kernel(); }
  int widest_input() const { return std::max({hidden, widest_inner(), widest_ffn()}); }

 private:
  static int most(const std::vector<int>& of) { return *std::max_element(of.begin(), of.end()); }
};

struct ModelSpec {
  std::optional<StackSpec> encoder;  // absent in decoder-only models
  StackSpec decoder;                 // attends to the encoder where there is one
  float logits_cap = 0.0f;           // 0: none; else logits are cap * tanh(logit / cap)

  int widest_input() const {
    return std::max(decoder.widest_input(), encoder ? encoder->widest_input() : 0);
  }
};

// The sizes that the memory plan provides for. The names are those of decoding.Limits.
struct Limits {
  int batch;           // sentences at once
  int beams;           // rows of one sentence: beams, or samples
  int source;          // encoder tokens of a sentence; 0 without an encoder
  int prompt;          // decoder tokens given for a sentence
  int target;          // decoder tokens generated for a row
  int candidates;      // next tokens considered for a row
  int finished = 0;    // rows that end of a sentence that are kept; 0: beams
  int controls = 0;    // 32-bit words of a call's controls (processors.h); 0: none, and no scores
  int attentions = 0;  // 1: cross attention of every step is kept
  int labels = 0;      // decoder tokens scored for a sentence
  int hidden = 0;      // 1: hidden states of all tokens are kept, for contrastive search
  int phrases = 0;     // 32-bit words of the phrases that rows must hold (constraints.h)
  int shortlist = 0;   // tokens that a call's steps choose from (shortlist.h); 0: no shortlists
  int tokens = 0;  // of all sources or prompts that are read at once; 0: of `batch` longest ones
  int pages = 0;   // of keys and values; 0: what `batch` longest sentences take
  int input_rows = 0;  // rows whose inputs of convolutions are kept; 0: rows()
  int rows() const { return batch * beams; }
  int places() const { return finished > beams ? finished : beams; }
};

// The sizes that the memory of sentences which come and go is planned for. Those of a request are
// named as in Limits.
struct RunnerLimits {
  int rows;     // that step at once
  int pages;    // of keys and values, for all requests
  int tokens;   // of sources or prompts that are read between two steps, at most
  int classes;  // kinds of requests that step side by side
  int words;    // 32-bit words of a request's lists (config.h)
  int beams, source, prompt, target, candidates;
};

}  // namespace decoding
