// What most kernels include. The build compiles it once for each instruction set: reading it takes
// longer than most of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/groups.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/stream.h"
