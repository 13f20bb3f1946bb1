// What test_vercel_ai.py has the Vercel AI SDK do: `node calls.mjs <api> <call> <prompt> [next]` prints the outcome as JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [api, call, prompt, next] = process.argv.slice(2);
const server = { baseURL: `${process.env.TEXT_GENERATION_URL}/v1`, apiKey: process.env.TEXT_GENERATION_KEY };
const openai = createOpenAI(server);
const compatible = createOpenAICompatible({ name: "own", supportsStructuredOutputs: true, includeUsage: true, ...server });
const model = { chat: openai.chat, responses: openai.responses, compatible }[api]("demo");
const common = { model, prompt, temperature: 0, maxOutputTokens: 100, maxRetries: 0 };

const calls = [];
const add = tool({
  description: "Add two numbers",
  inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
  execute: async ({ a, b }) => {
    calls.push([a, b]);
    return a + b;
  },
});
const agent = { ...common, tools: { add }, stopWhen: stepCountIs(3) };
const schema = z.object({ name: z.string(), age: z.number().int() });

// What is said after an answer, with the answer as the SDK gives it back.
function after({ messages }) {
  return [{ role: "user", content: prompt }, ...messages, { role: "user", content: next }];
}

async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

const does = {
  async generateText() {
    const { text, finishReason, usage, steps } = await generateText(agent);
    return { text, finishReason, calls, steps: steps.length, tokens: usage.outputTokens };
  },
  async streamText() {
    const result = streamText(agent);
    const parts = await all(result.fullStream);
    const texts = parts.filter((part) => part.type === "text-delta").map((part) => part.text);
    const inputs = parts.filter((part) => part.type === "tool-input-delta").map((part) => part.delta);
    return { texts, inputs, calls, finishReason: await result.finishReason, tokens: (await result.usage).outputTokens };
  },
  async generateObject() {
    return (await generateObject({ ...common, schema })).object;
  },
  async streamObject() {
    const result = streamObject({ ...common, schema });
    return { parts: await all(result.partialObjectStream), object: await result.object };
  },
  async secondTurn() {
    const { prompt, ...asked } = common;
    const first = await generateText(common);
    const { text, usage } = await generateText({ ...asked, messages: after(first.response) });
    return { text, tokens: usage.inputTokens };
  },
  async secondTurnOfStreams() {
    const { prompt, ...asked } = agent;
    const first = streamText(agent);
    await first.consumeStream();
    const second = streamText({ ...asked, messages: after(await first.response) });
    return { text: await second.text, calls };
  },
  async withoutStore() {
    const { prompt, ...asked } = common;
    const providerOptions = { openai: { store: false } };
    const first = await generateText({ ...common, providerOptions });
    return { text: (await generateText({ ...asked, messages: after(first.response), providerOptions })).text };
  },
  async refusal() {
    try {
      await generateText({ ...common, temperature: -1 });
    } catch ({ statusCode, message, isRetryable }) {
      return { statusCode, message, isRetryable };
    }
  },
};

console.log(JSON.stringify(await does[call]()));
