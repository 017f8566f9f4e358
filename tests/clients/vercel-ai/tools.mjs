// A tool of its own by Vercel's AI SDK, in all its ways: prints JSON. First argument: base URL.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import * as ai from 'ai';
import { z } from 'zod';

const baseURL = `${process.argv[2]}/v1`;
const openai = createOpenAI({ baseURL, apiKey: 'none' });
const models = {
  chat: openai.chat('helper'),
  responses: openai('helper'),
  compatible: createOpenAICompatible({ name: 'agent', baseURL })('helper'),
};
let called = [];
const weather = ai.tool({
  description: 'Tells the weather of a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    called.push(city);
    return `sunny in ${city}`;
  },
});

const found = {};
for (const [way, model] of Object.entries(models)) {
  const asked = { model, tools: { weather }, stopWhen: ai.stepCountIs(5), prompt: 'Which weather?' };
  found[way] = [(await ai.generateText(asked)).text, ...called];
  called = [];
  const stream = ai.streamText(asked);
  for await (const piece of stream.textStream) void piece; // nothing is asked for before
  found[`${way}, streamed`] = [await stream.text, ...called];
  called = [];
}
console.log(JSON.stringify(found));
