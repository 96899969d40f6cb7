#include "kernels/rows/dropout.h"

#include "kernels/cpu/stream.h"
#include "kernels/rows/cpu/dropout_factors.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int64_t kPart = 4096;  // elements that threads share

template <typename T>
void drop_part(const DropoutParams<T>& p, int64_t begin) {
  const int size = static_cast<int>(std::min(kPart, p.elements - begin));
  const auto drop = [&](int i, Lanes<T> factors, auto... count) {
    store(p.y + begin + i, load(p.x + begin + i, count...) * factors, count...);
  };
  for_dropped_vectors<T>(p.dropout, begin, size, drop);
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void dropout(cpu::Stream<isa>& stream, const DropoutParams<T>& p) {
  const int64_t parts = (p.elements + cpu::kPart - 1) / cpu::kPart;
  const cpu::Range mine = stream.share(static_cast<int>(parts));
  for (int part = mine.begin; part < mine.end; ++part) cpu::drop_part(p, part * cpu::kPart);
  stream.barrier();
}

#define INSTANTIATE(T) \
  template void dropout(cpu::Stream<cpu::Isa::DECODING_ISA>&, const DropoutParams<T>&);
DECODING_FOR_ELEMENTS(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
