"""`python -m ksana` is the same program as `ksana`."""

from ksana.cli.main import run

if __name__ == "__main__":
    run()
