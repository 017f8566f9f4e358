#!lua
-- Stores a signal with its run, once, and publishes it. With `allow-oom` for one that ends the run.
-- Gives 0 for a run that does not exist, 2 for one signal too many, else 1.
-- ARGV: prefix, run, signal, message, how many signals may be stored or ''
local status = redis.call('HGET', key('run', ARGV[2]), 'status')
if not status then
  return 0
end
if status == 'queued' or status == 'running' or status == 'input-required' then
  local signals, max = key('asked', ARGV[2]), tonumber(ARGV[5])
  if not redis.call('LPOS', signals, ARGV[3]) then
    if max and redis.call('LLEN', signals) >= max then
      return 2
    end
    redis.call('RPUSH', signals, ARGV[3])
  end
  redis.call('PUBLISH', PREFIX .. ':control', ARGV[4])
end
return 1
