#!/usr/bin/env bash
# compute-sanitizer on short generations of each family, and on a part of the CUDA kernels' tests, every
# EVERY-th: memcheck (bad accesses), racecheck (shared memory), initcheck (reads of what nobody
# wrote). Usage: tests/sanitize.sh [tool ...]; it needs an NVIDIA GPU and the CUDA toolkit. A tool
# takes some 100 seconds, and several can run at once.
#
# initcheck does not see all that cuBLASLt's kernels write, and racecheck not how these order their
# accesses. So both get generations of few tokens, whose products are all our own, and where torch
# computes what a test expects, only the races count that name our kernels. Tests of kernels need
# no initcheck: what must not be read is NaN there.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
tools=("$@")
[ $# -gt 0 ] || tools=(memcheck racecheck initcheck)
# Timing each product's candidates would run thousands of kernels. And every tensor of torch's gets
# memory of its own, so that what lies behind it is out of bounds.
export DECODING_TUNE=0 PYTORCH_NO_CUDA_MEMORY_CACHING=1
log=$(mktemp) chosen=$(mktemp)
trap 'rm -f "$log" "$chosen"' EXIT
failed=0

sanitize() { # options of compute-sanitizer and what it shall run
  timeout "${LIMIT:-600}" compute-sanitizer --print-limit 100 --tool "$@" 2>&1 | tee "$log"
}
report() { # tool, title, status, regular expression of lines that must not be in the log
  local count said=clean
  count=$(grep -cE "$4" "$log")
  [ "$3" -eq 0 ] && [ "$count" -eq 0 ] || { failed=1; said="FAILED, exit code $3, $count reports"; }
  echo "sanitize: $1, $2: $said"
}
generations() { # tool, tokens
  sanitize "$1" --error-exitcode 99 "$python" -m tests.sanitize "${@:2}"
  report "$1" generations $? "ERROR SUMMARY: [1-9]"
}
kernels() { # tool, every how many-th test, what must not be in the log
  "$python" -m pytest --collect-only -m gpu tests/kernels | grep :: |
    awk -v every="$2" 'NR % every == 1' > "$chosen"
  sanitize "$1" "$python" -m pytest -m gpu -q -p no:cacheprovider --timeout=0 "@$chosen"
  report "$1" "$(wc -l < "$chosen") tests of kernels" $? "$3"
}

for tool in "${tools[@]}"; do
  case $tool in
    memcheck)
      generations memcheck 5 10
      kernels memcheck "${EVERY:-45}" "ERROR SUMMARY: [1-9]" ;;
    racecheck)
      generations racecheck 5
      kernels racecheck $((6 * ${EVERY:-45})) " (between|and) .* at .*decoding::" ;;
    *) generations "$tool" 5 ;;
  esac
done
exit $failed
