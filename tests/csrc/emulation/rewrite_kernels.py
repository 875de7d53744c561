"""Makes plain C++ of a CUDA source.

kernel<<<blocks, threads, 0, stream>>>(...) becomes a call, and `__shared__` arrays become pieces of
memory that a block has.

python rewrite_kernels.py FROM.cu TO.cc
"""

import re
import sys
from pathlib import Path

LAUNCH = re.compile(
    r"(?P<kernel>\w+(<\w+>)?)<<<(?P<blocks>.*?),\s*(?P<threads>\w+),\s*0,\s*(?P<stream>.*?)>>>"
    r"\((?P<arguments>([^()]|\([^()]*\))*)\);",
    re.DOTALL,
)
CALL = (
    r"hvd_sparse::emulation::Launch(\g<blocks>, \g<threads>, \g<stream>, "
    r"[=] { \g<kernel>(\g<arguments>); });"
)
SHARED = re.compile(r"__shared__ (?P<type>[\w:]+) (?P<declarators>[^;]+);")


def of_block(shared: re.Match[str]) -> str:
    """Each name is a reference to memory that is found by a place of its own."""
    made = []
    for declarator in shared["declarators"].split(", "):
        name, _, bounds = declarator.partition("[")
        array = f"{shared['type']}[{bounds}" if bounds else shared["type"]
        made.append(
            f"static char {name}_place; "
            f"auto& {name} = hvd_sparse::emulation::OfBlock<{array}>(&{name}_place);"
        )
    return " ".join(made)


source, target = map(Path, sys.argv[1:])
original = source.read_text()
text, launches = LAUNCH.subn(CALL, original)
text = SHARED.sub(of_block, text)
if launches != original.count("<<<") or "__shared__" in text:
    sys.exit(f"{source}: there is a launch or a __shared__ of a form that {sys.argv[0]} ignores")
target.parent.mkdir(parents=True, exist_ok=True)
target.write_text(f'#line 1 "{source}"\n{text}')
