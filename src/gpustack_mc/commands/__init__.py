"""The commands of ``gpustack-mc``, by what they are for. They import click; heavy libraries load inside each."""
