"""Make a pair of Ed25519 keys to sign records with."""

import argparse
from pathlib import Path
from typing import Final

HELP: Final = "make a pair of keys to sign records with"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("path", type=Path, help="file for the private key; PATH.pub is the public")


def run(arguments: argparse.Namespace) -> int:
    """Write both files and print where they are; keys are never overwritten."""
    from ormas_core import make_keys

    keyid = make_keys(arguments.path)
    print(f"private key  {arguments.path}  keep it to yourself (mode 0600, no passphrase)")
    print(f"public key   {arguments.path}.pub  give it to those who verify")
    print(f"key id       {keyid}")
    return 0
