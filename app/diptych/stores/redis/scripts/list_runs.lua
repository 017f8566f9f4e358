#!lua flags=allow-oom
-- Lists runs, the newest first: of each its id and `client.RUN_FIELDS`. Looks at about 1,000 runs,
-- and gives the order of the last that it looked at, or '' if there are no more.
-- Gives 'unknown' if `before` is not in the list.
-- ARGV: prefix, before (a run or ''), from (an order or ''), how many, status or '', session (none:
--       all runs)
local before, from, count, status, session = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local list = session and key('runs', session) or INDEX
local MAX_RUNS, STEP = 1000, 100

if from == '' and before ~= '' then
  from = redis.call('ZSCORE', list, before)
  if not from then
    return { 'unknown' }
  end
end

local found, seen = {}, 0
from = from ~= '' and '(' .. from or '+inf'
repeat
  local limit = math.min(STEP, status == '' and count - #found or STEP)
  local runs =
    redis.call('ZRANGE', list, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, limit, 'WITHSCORES')
  for i = 1, #runs, 2 do
    if #found == count then
      break
    end
    from, seen = '(' .. runs[i + 1], seen + 1
    local fields = run_fields(runs[i])
    if not fields[1] or redis.call('EXISTS', key('log', runs[i])) == 0 then
      remove_run(runs[i])
    elseif status == '' or fields[3] == status then
      found[#found + 1] = { runs[i], unpack(fields) }
    end
  end
  if #runs < 2 * limit then
    return { 'ok', '', found }
  end
until #found == count or seen >= MAX_RUNS
return { 'ok', string.sub(from, 2), found }
