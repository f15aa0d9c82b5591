"""Run by Python itself, by this name, before the script that `shorthaul run` was given."""

from shorthaul.integrations.script_process import begin

begin()
