"""LLM: the engine in the caller's own process.

    from specrt import LLM
    llm = LLM()                                  # the embedded model
    reply = llm.chat(messages, tools=tools)
    reply.tool_calls[0].name, reply.tool_calls[0].arguments
"""
