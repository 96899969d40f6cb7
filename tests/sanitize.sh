#!/usr/bin/env bash
# compute-sanitizer on a part of the CUDA kernels' tests, every EVERY-th, and on short generations of
# each family: memcheck (bad accesses), racecheck (shared memory), initcheck (reads of what nobody
# wrote). Usage: tests/sanitize.sh [tool ...]; it needs an NVIDIA GPU and the CUDA toolkit.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
tools=("$@")
[ $# -gt 0 ] || tools=(memcheck racecheck initcheck)
# Timing each product's candidates would run thousands of kernels. And every tensor of torch's gets
# memory of its own, so that what lies behind it is out of bounds.
export DECODING_TUNE=0 PYTORCH_NO_CUDA_MEMORY_CACHING=1
chosen=$(mktemp)
trap 'rm -f "$chosen"' EXIT
"$python" -m pytest --collect-only -m gpu tests/kernels | grep :: |
  awk -v every="${EVERY:-25}" 'NR % every == 1' > "$chosen"
failed=0
check() { # tool, title, arguments of python
  local tool=$1 title=$2 status
  shift 2
  timeout "${LIMIT:-600}" compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 10 \
    "$python" "$@"
  status=$?
  [ $status -eq 0 ] || failed=1
  echo "sanitize: $tool, $title: $([ $status -eq 0 ] && echo clean || echo "FAILED, exit code $status")"
}
for tool in "${tools[@]}"; do
  check "$tool" "$(wc -l < "$chosen") tests of kernels" \
    -m pytest -m gpu -q -p no:cacheprovider --timeout=0 "@$chosen"
  check "$tool" "generations" -m tests.sanitize
done
exit $failed
