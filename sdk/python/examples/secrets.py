"""Gives a program a placeholder instead of a secret."""

import asyncio

from microsandbox import Sandbox, Secret


async def main() -> None:
    secret = Secret.env("API_KEY", value="not-a-real-key", allow=["api.example.com"])
    async with await Sandbox.create("secret", image="host", secrets=[secret], replace=True) as box:
        inside = (await box.exec("printenv", ["API_KEY"])).stdout_text.strip()
        print("the value is inside:", inside == "not-a-real-key")


asyncio.run(main())
