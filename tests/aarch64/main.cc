// Runs every CPU kernel on fixed numbers, with each instruction set of the machine, and prints a
// hash of each answer. __main__.py compares them.
#include "kernels/cpu/isa.h"
#include "tests/aarch64/cases.h"

int main() {
  using namespace decoding;
  for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
    cpu::with_isa(set.name, [&]<cpu::Isa isa>(cpu::Features features) {
      Machine<isa> machine(set.name, features);
      pack_cases(machine);
      linear_cases(machine);
      attention_cases(machine);
      decode_cases(machine);
      rows_cases(machine);
      training_cases(machine);
      selection_cases(machine);
      search_cases(machine);
      update_cases(machine);
    });
  }
}
