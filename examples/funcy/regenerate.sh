#!/bin/sh
# Make tasks.jsonl and suite.txt again, by the command anybody can use on any library; needs the extra `smith`.
set -eu
cd "$(dirname "$0")"
made=$(mktemp -d)
valve tasks generate pypi:funcy==2.0 --repo Suor/funcy --with whatever==0.7 --n 32 --alike --workers 2 --out "$made"
cp "$made/tasks.jsonl" "$made/suite.txt" .
