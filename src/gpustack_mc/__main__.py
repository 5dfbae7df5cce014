"""``gpustack-mc``, which ``python -m gpustack_mc`` is too."""

from gpustack_mc import interruption


def main() -> None:
    """Run the command line."""
    try:
        interruption.install()
        from gpustack_mc.cli import main as run

        run()
    except KeyboardInterrupt:
        interruption.exit_interrupted()


if __name__ == "__main__":
    main()
