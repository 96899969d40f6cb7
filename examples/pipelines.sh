#!/usr/bin/env bash
# The command line in pipes: bash examples/pipelines.sh FOLDER writes its files there.
# DECODING is the program, by default `decoding`, as it is installed.
set -euo pipefail
folder=${1:?say in which folder to write}
program=${DECODING:-decoding}
demo=models/demo stories=tests/data/stories260K

# Translations with the model's own scores, the least certain first: lines for a person to check.
$program translate --model $demo --scores --output-format tsv --quiet $demo/sentences.de.txt |
  awk -F '\t' '{ print $3 "\t" $1 "\t" $2 }' | sort -n > "$folder/uncertain.tsv"

# JSON lines keep what they came with, here an id.
printf '{"id": "a1", "text": "Guten Morgen."}\n{"id": "b2", "text": "Danke!"}\n' |
  $program translate --model $demo --input-format json --quiet > "$folder/translated.jsonl"

# A program that asks line by line, and gets each answer before it asks again.
coproc translator { $program translate --model $demo --quiet; }
for sentence in "Wo ist der Bahnhof?" "Ich habe Hunger."; do
  printf '%s\n' "$sentence" >&"${translator[1]}"
  read -r answer <&"${translator[0]}"
  printf '%s\t%s\n' "$sentence" "$answer"
done > "$folder/answers.tsv"
exec {translator[1]}>&-
wait "$translator_PID"

# Three samples of a story, best first by their log-probability.
$program generate --model $stories --prompt "Once upon a time" --do-sample --top-p 0.9 --seed 1 \
  --n-best 3 --max-new-tokens 60 --json --quiet > "$folder/stories.jsonl"
