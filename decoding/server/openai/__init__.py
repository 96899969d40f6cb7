"""What clients of OpenAI ask for: texts, chats, embeddings; and ids, as vLLM has them."""
