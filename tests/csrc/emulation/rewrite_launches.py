"""Makes plain C++ of a CUDA source: kernel<<<blocks, threads, 0, stream>>>(...) becomes a call.

python rewrite_launches.py FROM.cu TO.cc
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
    r"hvd_sparse::emulation::Given(\g<stream>); "
    r"hvd_sparse::emulation::Launch(\g<blocks>, \g<threads>, [&] { \g<kernel>(\g<arguments>); });"
)

source, target = map(Path, sys.argv[1:])
text, count = LAUNCH.subn(CALL, source.read_text())
if count != source.read_text().count("<<<"):
    sys.exit(f"{source}: there is a kernel launch of a form that {sys.argv[0]} does not know")
target.write_text(f'#line 1 "{source}"\n{text}')
