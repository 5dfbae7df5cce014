"""The program ``gpustack-mc``, also as ``python -m gpustack_mc``."""

from gpustack_mc import interruption


def main() -> None:
    """Run the command line."""
    interruption.arm()
    # Imported when Ctrl-C is already taken care of.
    from gpustack_mc import cli

    cli.main()


if __name__ == "__main__":
    main()
