"""Serves an MCPServer's Python code over standard input and output, in a process of its own.

    python -m diptych.cli.inline_tools CODE [PACKAGE …]

On a laptop each Agent starts it as a tool server's command, so that the code sees the MCPServer's
variables, and not those of the agent.
"""

import sys
import tempfile
from pathlib import Path

from diptych.cli.commands.mcp_server import of_file
from diptych.core.errors import ConfigError
from diptych.mcp.functions import function_server


def main() -> None:
    """Serve until stdin is closed; exit with a sentence where the code is no tool server."""
    code, *packages = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "python"
        file.write_text(code, encoding="utf-8")
        try:
            server = function_server(of_file(file, packages))
        except ConfigError as error:
            sys.exit("; ".join(error.problems).replace(str(file), file.name))
    server.run("stdio")


if __name__ == "__main__":
    main()
