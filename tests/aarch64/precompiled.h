// What most kernels include, compiled once for each instruction set: reading it takes longer than
// most of them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/groups.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/stream.h"
