"""Entry point of the command `text-generation-server`, and of `python -m text_generation_server`."""

from .launcher import die_with_launcher


def main() -> None:
    """Runs the command. Its imports take time, in which the launcher may end."""
    die_with_launcher()

    from .cli import app

    app()


if __name__ == "__main__":
    main()
