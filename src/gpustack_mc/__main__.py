"""``python -m gpustack_mc`` is ``gpustack-mc``."""

from gpustack_mc.cli import main

main()
