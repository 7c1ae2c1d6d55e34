#!/bin/bash
# prepare.sh WORK: on the GPU machine, unpack SGLang, hangdoctor's own needs and a tiny model into WORK; skips what is there
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); repo=$(cd "$here/../.." && pwd); work=${1:?usage: prepare.sh WORK}
mkdir -p "$work/home" "$work/model"
if [ ! -e "$work/tools/.done" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/tools" "$repo"/.whl/*.whl
  touch "$work/tools/.done"
fi
if [ ! -e "$work/site/.done" ] && [ -e "$repo/.site/site.tar.xz" ]; then
  mkdir -p "$work/site"
  xz -dc -T0 "$repo/.site/site.tar.xz" | tar x -C "$work/site"
  touch "$work/site/.done"
fi
cp "$here"/tiny_llama/* "$work/model/"
[ -e "$work/model/model.safetensors" ] || python3 "$here/make_weights.py" "$work/model"
