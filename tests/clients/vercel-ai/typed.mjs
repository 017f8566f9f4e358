// Typed outputs by Vercel's AI SDK, in all its ways: prints them as JSON. First argument: base URL.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import * as ai from 'ai';
import { z } from 'zod';

const baseURL = `${process.argv[2]}/v1`;
const schema = z.object({ name: z.string(), population: z.number().int() });
const prompt = 'Which city?';
const compatible = (fields) =>
  createOpenAICompatible({ name: 'agent', baseURL, ...fields })('helper');
const models = {
  openai: createOpenAI({ baseURL, apiKey: 'none' }).chat('helper'),
  compatible: compatible({ supportsStructuredOutputs: true }),
  'without schemas': compatible({}), // asks for a JSON object, and for its form in words
};

const found = {};
for (const [way, model] of Object.entries(models)) {
  found[way] = (await ai.generateObject({ model, schema, prompt })).object;
  const stream = ai.streamObject({ model, schema, prompt });
  for await (const part of stream.partialObjectStream) void part; // nothing is asked for before
  found[`${way}, streamed`] = await stream.object;
  const output = ai.Output.object({ schema });
  found[`${way}, as output`] = (await ai.generateText({ model, output, prompt })).output;
}
console.log(JSON.stringify(found));
