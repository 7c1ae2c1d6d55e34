#!/bin/bash
# build_site.sh DIR: the packages of wheels.txt for CPython 3.12, pruned, as DIR/site.tar.xz (43 MiB, about three minutes)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build_site.sh DIR}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/site"

# pip matches platform tags exactly, so every glibc that these wheels were built for is named
platforms=()
for glibc in 39 35 34 31 28 27 26 24 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
for name in manylinux2014 manylinux2010 manylinux1; do platforms+=(--platform "${name}_x86_64"); done
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  "${platforms[@]}" -d "$work/wheels" -r "$here/wheels.txt"

for wheel in "$work"/wheels/*.whl; do unzip -q -o "$wheel" -d "$work/site"; done
cd "$work/site"
for data in ./*.data; do
  [ -d "$data" ] || continue
  for part in purelib platlib; do [ ! -d "$data/$part" ] || cp -r "$data/$part"/. .; done
  [ ! -d "$data/scripts" ] || { mkdir -p bin && cp -r "$data/scripts"/. bin/; }
  rm -rf "$data"
done
# kernels for other GPUs, a static library that nothing loads, translations: most of the size
rm -rf sgl_kernel/flash_ops* sgl_kernel/flashmla_ops* sgl_kernel/sm100 sgl_kernel/include xgrammar/lib _mscclpp* \
  pycountry/locales jedi/third_party lib include
find . -name tests -type d -prune -exec rm -rf {} +
find . -name '*.so' -size +1M -exec strip --strip-debug {} \; || true
tar c --owner=0 --group=0 . | xz -T0 -8 > "$out/site.tar.xz"
ls -l "$out/site.tar.xz"
