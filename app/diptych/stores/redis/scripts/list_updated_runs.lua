#!lua flags=allow-oom
-- Lists runs, the one whose last record is newest first: of each its id and `client.RUN_FIELDS`.
-- Gives how many runs there are in all, how many of the page have expired, and the rest of the page.
-- ARGV: prefix, since (ms), before (ms or '') and its run, how many, status …
local since, before, before_run = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local max, wanted, total, page = tonumber(ARGV[5]), {}, 0, {}
for i = 6, #ARGV do
  wanted[ARGV[i]] = true
end

local unfinished = {}
for _, session in ipairs(redis.call('SMEMBERS', ACTIVE)) do
  for _, run in ipairs(redis.call('LRANGE', key('queue', session), 0, -1)) do
    unfinished[#unfinished + 1] = run
  end
end

local function add(run, ms)
  if not before or ms < before or (ms == before and run < before_run) then
    page[#page + 1] = { ms, run }
  end
end

for _, run in ipairs(unfinished) do
  local ms, status = updated_ms(run)
  if status and wanted[status] and ms >= since then
    total = total + 1
    add(run, ms)
  end
end
for _, status in ipairs(ENDS) do
  if wanted[status] then
    local list, below = list_ended(status), before and '(' .. before or '+inf'
    total = total + redis.call('ZCOUNT', list, since, '+inf')
    local runs =
      redis.call('ZRANGE', list, below, since, 'BYSCORE', 'REV', 'LIMIT', 0, max, 'WITHSCORES')
    for i = 1, #runs, 2 do
      add(runs[i], tonumber(runs[i + 1]))
    end
    if before and before >= since then
      for _, run in ipairs(redis.call('ZRANGE', list, before, before, 'BYSCORE')) do
        add(run, before)
      end
    end
  end
end

table.sort(page, function(one, other)
  return one[1] > other[1] or (one[1] == other[1] and one[2] > other[2])
end)
local found, expired = {}, 0
for i = 1, math.min(max, #page) do
  local run = page[i][2]
  local fields = run_fields(run)
  if fields[1] and redis.call('EXISTS', key('log', run)) == 1 then
    found[#found + 1] = { run, unpack(fields) }
  else
    remove_run(run)
    expired = expired + 1
  end
end
return { total, expired, found }
