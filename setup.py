"""Packages of the wheel: bayes_dc, and scripts/ as its commands. All else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["bayes_dc", "bayes_dc.*"]), "bayes_dc.commands"],
    package_dir={"bayes_dc.commands": "scripts"},
)
