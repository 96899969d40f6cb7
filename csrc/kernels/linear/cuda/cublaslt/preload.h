// CUDA loads a kernel when it is first launched. For cuBLASLt's that takes 0.1 s once, and 3 to 5
// ms each, which a program can spend while it imports and reads files.
#pragma once

namespace decoding::cuda {

// Launches once each of cuBLASLt's kernels that products on this GPU were tuned to, in any process:
// those that 0.4 s suffice for, as there may be many models'. Returns how many.
int load_tuned_kernels(int device);

}  // namespace decoding::cuda
