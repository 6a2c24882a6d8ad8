"""Whether torchrun started this process; run with ``python -m``, it is torchrun that stays on this host.

    python -m refsim.base.torchrun --nproc-per-node 8 -m refsim run CHECKPOINT_DIR ...

Plain ``torchrun`` opens the store, through which the ranks find each other, on every interface of the host, without a
password. Here its agent keeps its own notes in a file, and rank 0 opens the store on 127.0.0.1 alone. The options are
torchrun's; one that names other hosts or a meeting point (``--nnodes``, ``--rdzv-*``, ``--master-addr``) asks for other
interfaces and is left as it is.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from refsim.base import scratch

_LOOPBACK = "127.0.0.1"


def under_torchrun() -> bool:
    """Whether this process is a rank already."""
    return "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def is_main() -> bool:
    """Whether this process reports to the user (always, but for torchrun's ranks above 0)."""
    return not under_torchrun() or int(os.environ["RANK"]) == 0


def main(argv: list[str] | None = None) -> NoReturn:
    """Run torchrun's command line; the exit code is that of the first rank that failed (1 if a signal ended it)."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    args = parse_args(argv)
    one_host = args.nnodes in ("1", "1:1") and args.rdzv_backend == "static" and args.master_addr in (None, _LOOPBACK)
    code = 0
    with scratch.Folder("torchrun") as folder:
        if one_host:
            args.standalone = False
            args.rdzv_backend = "c10d"
            args.rdzv_conf = "store_type=file"
            args.rdzv_endpoint = os.path.join(folder, "rendezvous")
            args.local_addr = _LOOPBACK
            # so that rank 0 opens the store, see refsim.runtime.ranks.joined; the agent would on every interface
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        try:
            run(args)
        except ChildFailedError as e:
            code = max(1, e.get_first_failure()[1].exitcode)
    sys.exit(code)


if __name__ == "__main__":
    main()
